"""Opening a run folder: the checks that keep a run from being begun twice, begun over, or mixed with another."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..errors import InputError, JournalError, RunMismatch, SafeModeError, StorageError
from ..protocols import Storage
from .claim import CONTROLLER, RUN, identify, read_controller, read_run_id, write_controller
from .history import History, fold
from .journal import Log, lockable, read_log, repair
from .lease import Heartbeat, hold
from .lines import Entry, made
from .segments import SegmentLog, claim, taken_over
from .spill import carry_over

LOG = "state_log.jsonl"
ROLLOUTS, CHECKPOINTS = "rollouts", "checkpoints"
CLAIMED = "claimed"  # the first line of an attempt, where opening is a matter of the log itself


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that this process holds."""

    storage: Storage
    log_storage: Storage
    log_path: str
    run_id: str
    nonce: str  # of this attempt
    unlock: Callable[[], None]
    log: Log
    history: History
    attempt: int
    heartbeat: Heartbeat | None = None  # where there are no locks

    def release(self) -> None:
        """Give the run back: nobody is at work on it any more. What another controller holds by now is left to it."""
        try:
            if self.heartbeat is not None:
                self.heartbeat.stop()
            holder = read_controller(self.storage)
            if holder is None or holder.nonce == self.nonce:
                with suppress(StorageError):  # it only says who held the run; a start that comes does not trust it
                    self.storage.delete(CONTROLLER)
        finally:
            self.unlock()


def read_history(storage: Storage, log_storage: Storage, log_path: str) -> History:
    """What the state log tells, for readers that do not hold the run. Raises InputError where there is no run."""
    if storage.stat(RUN) is None:
        raise InputError("no run here", where=storage.uri, remedy="give the folder that --run-dir named")
    return fold(read_log(log_storage, log_path).entries)


def open_run(
    storage: Storage,
    log_storage: Storage,
    log_path: str,
    *,
    resume: str,
    code_version: str,
    take_over: bool = False,
    wall: Callable[[], float] = time.time,
) -> OpenRun:
    """Hold the run, read the state log, repair a torn last line, and count the attempt.

    Where the log lies in objects, the attempt's first line is written before anything else. ``take_over``: do not wait
    for a controller on another host that may be dead. Raises RunBusy, JournalError (data without a readable log is
    never begun over), RunMismatch, SafeModeError.
    """
    release = hold(storage, log_storage, log_path, take_over=take_over, wall=wall)
    nonce, heartbeat = uuid.uuid4().hex[:16], None
    try:
        if not lockable(log_storage):
            carry_over(storage, log_storage, log_path)
        while True:
            log = read_log(log_storage, log_path)
            data = not log.entries and _has_data(storage)
            if data:
                log = read_log(log_storage, log_path)  # it may have been begun meanwhile
            history = fold(log.entries)
            _check(storage, f"{log_storage.uri}/{log_path}", log, history, resume, lost=data and not log.entries)
            run_id, attempt = identify(storage, code_version=code_version), history.attempt + 1
            claimed = _claimed(log_storage, log_path, log, history, (run_id, history.branch, attempt, nonce), wall)
            if isinstance(claimed, Log):
                break
            if not take_over and claimed.event == CLAIMED:  # somebody else starts at this moment
                raise taken_over(claimed, storage.uri)
        facts = write_controller(storage, attempt=attempt, nonce=nonce)
        heartbeat = None if lockable(storage) or lockable(log_storage) else Heartbeat(storage, facts)
    except BaseException:
        release()
        raise
    return OpenRun(storage, log_storage, log_path, run_id, nonce, release, claimed, history, attempt, heartbeat)


def _claimed(
    storage: Storage,
    path: str,
    log: Log,
    history: History,
    identity: tuple[str, int, int, str],
    wall: Callable[[], float],
) -> Log | Entry:
    """The log, with the first line of this attempt where that is what opens it, or the line that came in its place."""
    if log.segments is None:
        repair(storage, path, log, identity[2])
        return log
    before = log.entries[-1] if log.entries else None
    payload = {"pid": os.getpid(), "host": socket.gethostname()}
    found = claim(storage, path, log.segments, made(before, wall(), identity, history.state, CLAIMED, payload))
    if isinstance(found, SegmentLog):
        history.add(found.entries[-1])
        return Log(found.entries, 0, b"", found)
    return found


def _check(storage: Storage, where: str, log: Log, history: History, resume: str, *, lost: bool) -> None:
    """Reads only: a start that is refused leaves everything as it is. ``lost``: there is data, but no log."""
    if lost:
        raise JournalError(
            "the folder holds data of a run, but no readable state log",
            where=where,
            remedy="restore it from a backup, or use another --run-dir; nothing was changed",
        )
    if log.entries and storage.stat(RUN) is None:
        raise RunMismatch(
            f"the state log belongs to run {history.run_id}, but the folder has no {RUN}",
            where=where,
            remedy=f"restore {RUN} from a backup, or give a new run its own state_log_path",
        )
    if log.entries and history.run_id != read_run_id(storage):
        raise RunMismatch(
            f"the state log belongs to run {history.run_id}, the folder to run {read_run_id(storage)}",
            where=where,
            remedy="give each run its own state_log_path",
        )
    if log.entries and resume == "never":
        raise InputError(
            f"--resume never, but the folder holds a run at step {history.step}",
            where=storage.uri,
            remedy="use another --run-dir, or leave --resume away to go on",
        )
    if history.state == "SAFE_MODE":
        raise SafeModeError(
            "the run is in SAFE_MODE",
            where=storage.uri,
            remedy=f"see `verl-core status`, then `verl-core confirm {storage.uri} --name YOU --reason WHY`",
        )


def _has_data(storage: Storage) -> bool:
    """Whether there are batches or checkpoints, finished or not."""
    folders = (storage.child(name).list() for name in (ROLLOUTS, CHECKPOINTS))
    return any(stat.path.partition("/")[0].startswith(("epoch_", "step_")) for found in folders for stat in found)
