"""A run held by a person's command for one line in its state log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..protocols import Storage
from ..writes import WriteQueue
from .claim import read_run_id
from .history import History, fold
from .journal import Journal, Log, lockable, read_log, repair
from .lease import hold
from .segments import taken_over
from .spill import carry_over

_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run that no controller holds while this lasts."""

    storage: Storage
    log_storage: Storage
    log_path: str
    log: Log
    history: History

    def note(self, event: str, state: str, payload: object, command: str) -> None:
        """Write a durable line; ``command`` stands where a controller's nonce stands. Raises StorageError, RunBusy."""
        storage, path, history = self.log_storage, self.log_path, self.history
        repair(storage, path, self.log, history.attempt)
        writes = WriteQueue(patience_s=_PATIENCE_S)
        identity = (read_run_id(self.storage), history.branch, history.attempt, command)
        journal = Journal(storage, path, self.log, writes, identity=identity, wall=time.time)
        entry = journal.record(event, state, payload)
        writes.close()
        newest = read_log(storage, path).entries[-1]
        if newest.hash != entry.hash:  # a controller began meanwhile, where there are no locks
            raise taken_over(newest, self.storage.uri)


@contextmanager
def held_run(storage: Storage, log_storage: Storage, log_path: str) -> Iterator[HeldRun]:
    """Keep controllers from starting the run. Raises RunBusy when one is at work, JournalError."""
    release = hold(storage, log_storage, log_path)
    try:
        if not lockable(log_storage):
            carry_over(storage, log_storage, log_path)
        log = read_log(log_storage, log_path)
        yield HeldRun(storage, log_storage, log_path, log, fold(log.entries))
    finally:
        release()
