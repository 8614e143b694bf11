"""Opening a run folder: the checks that keep a run from being begun twice, begun over, or mixed with another."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import InputError, JournalError, RunMismatch, SafeModeError
from ..protocols import FileStorage, Storage
from .claim import CONTROLLER, RUN, identify, lock_run, read_run_id, write_controller
from .history import History, fold
from .journal import Log, read_log, repair

LOG = "state_log.jsonl"
ROLLOUTS, CHECKPOINTS = "rollouts", "checkpoints"


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that this process holds."""

    storage: FileStorage
    log_storage: FileStorage
    log_path: str
    run_id: str
    nonce: str  # of this attempt
    unlock: Callable[[], None]
    log: Log
    history: History
    attempt: int

    def release(self) -> None:
        """Give the run back: nobody is at work on it any more."""
        try:
            self.storage.delete(CONTROLLER)
        finally:
            self.unlock()


def read_history(storage: Storage, log_storage: FileStorage, log_path: str) -> History:
    """What the state log tells, for readers that do not hold the run. Raises InputError where there is no run."""
    if storage.stat(RUN) is None:
        raise InputError("no run here", where=storage.uri, remedy="give the folder that --run-dir named")
    return fold(read_log(log_storage, log_path).entries)


def open_run(
    storage: FileStorage, log_storage: FileStorage, log_path: str, *, resume: str, code_version: str
) -> OpenRun:
    """Lock the folder, read the state log, repair a torn last line, and count the attempt.

    Raises RunBusy, JournalError (data without a readable log is never begun over), RunMismatch, SafeModeError.
    """
    release = lock_run(storage)
    try:
        log = read_log(log_storage, log_path)
        history = fold(log.entries)
        _check(storage, f"{log_storage.uri}/{log_path}", log, history, resume)
        run_id, nonce = identify(storage, code_version=code_version), uuid.uuid4().hex[:16]
        attempt = history.attempt + 1
        repair(log_storage, log_path, log, attempt)
        write_controller(storage, attempt=attempt, nonce=nonce)
    except BaseException:
        release()
        raise
    return OpenRun(storage, log_storage, log_path, run_id, nonce, release, log, history, attempt)


def _check(storage: FileStorage, where: str, log: Log, history: History, resume: str) -> None:
    """Reads only: a start that is refused leaves everything as it is."""
    if not log.entries and _has_data(storage):
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


def _has_data(storage: FileStorage) -> bool:
    """Whether there are batches or checkpoints, finished or not."""
    folders = (storage.child(name).list() for name in (ROLLOUTS, CHECKPOINTS))
    return any(stat.path.partition("/")[0].startswith(("epoch_", "step_")) for found in folders for stat in found)
