"""Who holds a run: a folder is claimed once by its run id, and locked by one controller at a time."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import orjson
import psutil

from ..errors import JournalError, ObjectExists, RunBusy, RunMismatch
from ..protocols import FileStorage, Storage

FORMAT = 1  # of the run folder
LOCK, RUN, CONTROLLER = ".lock", "run.json", "controller.json"


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
        try:
            return psutil.Process(self.pid).create_time() <= self.started + 1
        except psutil.NoSuchProcess:
            return False


def lock_run(storage: FileStorage) -> Callable[[], None]:
    """Take the run's lock, which dies with this process; returns its release. Raises RunBusy."""
    release = storage.lock(LOCK)
    if release is None:
        holder = read_controller(storage)
        who = f"by process {holder.pid} on {holder.host}" if holder else "by another controller"
        raise RunBusy(
            f"the run is held {who}", where=storage.uri, remedy="stop that one first, or use another --run-dir"
        )
    return release


def identify(storage: Storage, *, code_version: str) -> str:
    """The run's id; a new run is given one. Raises like ``read_run_id``."""
    facts = {"format": FORMAT, "run_id": uuid.uuid4().hex[:16], "created": time.time(), "code_version": code_version}
    with suppress(ObjectExists):
        storage.put(RUN, orjson.dumps(facts, option=orjson.OPT_INDENT_2), if_absent=True)
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
    try:
        storage.put("RUN", run_id.encode(), if_absent=True)
    except ObjectExists:
        owner = storage.get("RUN").decode(errors="replace")
        if owner != run_id:
            raise RunMismatch(
                f"the prefix belongs to run {owner}, this is run {run_id}",
                where=storage.uri,
                remedy="give each run its own prefix",
            ) from None


def write_controller(storage: Storage, *, attempt: int, nonce: str) -> None:
    facts = Controller(os.getpid(), socket.gethostname(), attempt, nonce, time.time())
    storage.put(CONTROLLER, orjson.dumps(facts))


def read_controller(storage: Storage) -> Controller | None:
    if storage.stat(CONTROLLER) is None:
        return None
    return Controller(**orjson.loads(storage.get(CONTROLLER)))
