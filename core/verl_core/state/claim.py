"""Who holds a run: a folder is claimed once by its run id, and locked by one controller at a time."""

from __future__ import annotations

import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import orjson
import psutil

from ..committed import create
from ..errors import JournalError, ObjectMissing, RunBusy, RunMismatch
from ..protocols import FileStorage, Storage

FORMAT = 1  # of the run folder
LOCK, RUN, CONTROLLER = ".lock", "run.json", "controller.json"
CLAIM = "RUN"  # in a prefix: whose it is


@dataclass(frozen=True, slots=True)
class Controller:
    """Who holds (or held) the run last."""

    pid: int
    host: str
    attempt: int
    nonce: str
    started: float

    @property
    def alive(self) -> bool:
        """Whether that process still lives; False on another host, where nobody here can tell."""
        if self.host != socket.gethostname():
            return False
        return lives(self.pid, self.started)


def lives(pid: int, started: float = math.inf) -> bool:
    """Whether the process is there and at work, and began before ``started`` (Unix time): one that has ended is not,
    also where nobody has taken notice of its end."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= started + 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lock_run(storage: FileStorage, path: str = LOCK, *, run: Storage | None = None) -> Callable[[], None]:
    """Take the run's lock, which dies with this process; returns its release. Raises RunBusy.

    ``run``: the run's folder, where the lock lies elsewhere.
    """
    release = storage.lock(path)
    if release is None:
        raise busy(run or storage, "stop that one first, or use another --run-dir")
    return release


def busy(run: Storage, remedy: str) -> RunBusy:
    """The error of a start that finds the run held."""
    holder = read_controller(run)
    who = f"by process {holder.pid} on {holder.host}" if holder else "by another controller"
    return RunBusy(f"the run is held {who}", where=run.uri, remedy=remedy)


def identify(storage: Storage, *, code_version: str) -> str:
    """The run's id; a new run is given one. Raises like ``read_run_id``."""
    facts = {"format": FORMAT, "run_id": uuid.uuid4().hex[:16], "created": time.time(), "code_version": code_version}
    described = orjson.dumps(facts, option=orjson.OPT_INDENT_2)
    create(storage, RUN, described, conditional=storage.capabilities().conditional_put)
    return read_run_id(storage)


def read_run_id(storage: Storage) -> str:
    """The id of the run in this folder. Raises RunMismatch for another format, JournalError when unreadable."""
    where = f"{storage.uri}/{RUN}"
    try:
        facts = orjson.loads(storage.get(RUN))
        found, run_id = int(facts["format"]), str(facts["run_id"])
    except (ValueError, KeyError, TypeError):
        raise JournalError("not a run description", where=where, remedy="restore it from a backup") from None
    if found != FORMAT:
        raise RunMismatch(f"format {found}, this version reads format {FORMAT}", where=where)
    return run_id


def claim_prefix(storage: Storage, run_id: str) -> None:
    """Mark a prefix as this run's. Raises RunMismatch when another run has it."""
    found = create(storage, CLAIM, run_id.encode(), conditional=storage.capabilities().conditional_put)
    if found is not None:
        raise RunMismatch(
            f"the prefix belongs to run {found.decode(errors='replace')}, this is run {run_id}",
            where=storage.uri,
            remedy="give each run its own prefix",
        )


def write_controller(storage: Storage, *, attempt: int, nonce: str) -> bytes:
    """Say who holds the run; returns what was written."""
    facts = orjson.dumps(Controller(os.getpid(), socket.gethostname(), attempt, nonce, time.time()))
    storage.put(CONTROLLER, facts)
    return facts


def read_controller(storage: Storage) -> Controller | None:
    """None as well when what is there cannot be read: it decides nothing that the state log does not decide again."""
    try:
        return Controller(**orjson.loads(storage.get(CONTROLLER)))
    except (ObjectMissing, ValueError, TypeError):
        return None
