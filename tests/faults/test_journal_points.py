"""The state log, killed or failed at every operation: what was said to be durable is there, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from verl_core.errors import StorageError, StorageFull, StorageTimeout
from verl_core.protocols import FileStorage
from verl_core.state.history import fold
from verl_core.state.journal import Journal, read_log, repair
from verl_core.testing.faulty import FailingStorage
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

from tests.support.points import killed_everywhere

pytestmark = pytest.mark.usefixtures("without_syncs")

LOG, LINES = "logs/state_log.jsonl", 4
TAILS = ("cut short", "foreign", "zeros")


def write(storage: FileStorage, marks: Path, attempt: int = 1, patience_s: float = 0.0) -> None:
    """Lines one by one; each is marked, outside the storage, once it is said to be durable."""
    log = read_log(storage, LOG)
    repair(storage, LOG, log, attempt)
    writes = WriteQueue(patience_s=patience_s)
    journal = Journal(storage, LOG, log, writes, identity=("run", 0, attempt, "n"), wall=lambda: 1.5)
    for i in range(LINES):
        journal.record("note", "TRAIN", {"attempt": attempt, "i": i})
        writes.barrier()
        marks.mkdir(exist_ok=True)
        (marks / f"{attempt} {i}").touch()
    writes.close()


def told(root: Path) -> list[tuple[int, int]]:
    """(attempt, line) of each that was said to be durable."""
    return sorted((int(p.name.split()[0]), int(p.name.split()[1])) for p in (root / "marks").glob("*"))


def lines(root: Path) -> list[tuple[int, int]]:
    entries = read_log(LocalStorage(str(root)), LOG).entries
    return [(int(str(e.payload["attempt"])), int(str(e.payload["i"]))) for e in entries]


def check_and_go_on(root: Path) -> None:
    """Every line that was said to be durable is there, at most one more; the next attempt's come behind them."""
    found, marked = lines(root), told(root)
    assert found[: len(marked)] == marked
    assert len(found) <= len(marked) + 1
    write(LocalStorage(str(root)), root / "marks", attempt=9)
    assert lines(root) == [*found, *((9, i) for i in range(LINES))]
    assert fold(read_log(LocalStorage(str(root)), LOG).entries).attempt == 9


def begun(root: Path, tail: bytes = b"") -> None:
    write(LocalStorage(str(root)), root / "marks")
    with open(root / LOG, "ab") as file:
        file.write(tail)


def next_attempt(root: Path) -> None:
    write(LocalStorage(str(root)), root / "marks", attempt=2)


def test_a_log_killed_at_any_operation_has_all_lines_that_were_durable(tmp_path: Path) -> None:
    roots = 0
    for root in killed_everywhere(tmp_path, lambda root: None, begun):
        check_and_go_on(root)
        roots += 1
    assert roots > 4 * LINES


@pytest.mark.parametrize("tail", [b'{"seq":4,"half', b'{"whole":"but not ours"}\n', b"\0" * 99], ids=TAILS)
def test_a_repair_killed_at_any_operation_keeps_all_lines_and_the_torn_one_aside(tmp_path: Path, tail: bytes) -> None:
    for root in killed_everywhere(tmp_path, partial(begun, tail=tail), next_attempt):
        kept = [path.read_bytes() for path in root.glob("logs/*.torn.*")]
        assert tail in kept or (root / LOG).read_bytes().endswith(tail)
        check_and_go_on(root)
        assert tail in [path.read_bytes() for path in root.glob("logs/*.torn.*")]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("tail", [b"", b'{"seq":4,"half'], ids=["whole", "torn"])
def test_a_log_whose_storage_fails_at_any_operation_is_as_before_or_longer(
    tmp_path: Path, tail: bytes, lost: bool
) -> None:
    for n in count(1):
        root, error = tmp_path / str(n), (StorageFull, StorageTimeout)[n % 2]
        begun(root, tail)
        storage = FailingStorage(LocalStorage(str(root)), n, error, lost=lost, reads=True)
        failed: Sequence[StorageError] = ()
        try:
            write(storage, root / "marks", attempt=2)
        except StorageError as caught:
            failed = [caught]
        assert bool(failed) == (storage.changes >= n)
        check_and_go_on(root)
        if not failed:
            break
    assert n > LINES


@pytest.mark.parametrize("lost", [False, True])
def test_with_patience_any_one_failure_is_ridden_out_and_no_line_doubled(tmp_path: Path, lost: bool) -> None:
    for n in count(1):
        root = tmp_path / str(n)
        storage = FailingStorage(LocalStorage(str(root)), n, StorageTimeout, lost=lost)
        write(storage, root / "marks", patience_s=10)
        assert lines(root) == told(root) == [(1, i) for i in range(LINES)]
        if storage.changes < n:
            break
    assert n > LINES
