"""``--force-resume`` on record: what had changed stands in the state log before anything of the old is overwritten."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..writes import WriteQueue
from .folder import OpenRun
from .history import fold
from .journal import Journal, read_log
from .segments import taken_over

FORCED = "forced"
_PATIENCE_S = 10.0


def note_forced(run: OpenRun, changes: Sequence[str], wall: Callable[[], float] = time.time) -> OpenRun:
    """The run with a durable line that says what this attempt goes on in spite of. Raises StorageError, RunBusy."""
    identity = (run.run_id, run.history.branch, run.attempt, run.nonce)
    writes = WriteQueue(patience_s=_PATIENCE_S)
    journal = Journal(run.log_storage, run.log_path, run.log, writes, identity=identity, wall=wall)
    journal.record(FORCED, run.history.state, {"changes": list(changes)})
    writes.close()
    log = read_log(run.log_storage, run.log_path)
    if log.entries[-1].nonce != run.nonce:  # else it would go on behind another controller's lines
        raise taken_over(log.entries[-1], run.storage.uri)
    return replace(run, log=log, history=fold(log.entries))
