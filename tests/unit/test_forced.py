"""``--force-resume`` stands in the state log, whatever the log lies on, before anything else of the attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_core.protocols import Storage
from verl_core.state.folder import LOG, OpenRun, open_run
from verl_core.state.forced import FORCED, note_forced
from verl_core.state.journal import Journal, read_log
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

CHANGES = ["the config changed: rollout.n: 4 → 8", "the data set changed: a.jsonl: new"]


@pytest.fixture(params=["local", "memory files", "memory objects"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    made: dict[str, Storage] = {
        "local": LocalStorage(str(tmp_path)),
        "memory files": MemoryFiles(),
        "memory objects": MemoryObjects(),
    }
    return made[request.param]


def opened(storage: Storage) -> OpenRun:
    return open_run(storage, storage, LOG, resume="auto", code_version="0")


def go_on(run: OpenRun) -> None:
    """Write one more line, as the controller does."""
    writes = WriteQueue(patience_s=1)
    identity = (run.run_id, run.history.branch, run.attempt, run.nonce)
    journal = Journal(run.log_storage, run.log_path, run.log, writes, identity=identity, wall=lambda: 1.0)
    journal.record("swept", "ROLLOUT", {"names": []})
    writes.close()


def test_the_changes_are_on_record_and_the_attempt_goes_on_behind_them(storage: Storage) -> None:
    for attempt in (1, 2):
        run = opened(storage)
        noted = note_forced(run, CHANGES, wall=lambda: 1.0)
        assert (noted.attempt, noted.nonce, noted.history.attempt) == (attempt, run.nonce, attempt)
        go_on(noted)
        noted.release()
    lines = [entry for entry in read_log(storage, LOG).entries if entry.event in (FORCED, "swept")]
    assert [(e.event, e.attempt, e.state) for e in lines] == [
        (FORCED, 1, "INIT"),
        ("swept", 1, "ROLLOUT"),
        (FORCED, 2, "ROLLOUT"),
        ("swept", 2, "ROLLOUT"),
    ]
    assert lines[0].payload == {"changes": CHANGES}
