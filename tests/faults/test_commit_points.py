"""A commit, a sweep and a condemnation, killed or failed at every operation: a batch is whole or it is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
from verl_core.errors import DamagedBatch, StorageDenied, StorageError, StorageFull, StorageReadOnly
from verl_core.rollout.writer import AtomicWriter
from verl_core.testing.faulty import FailingStorage, killed_at
from verl_core.types import BatchRef, Bytes, RunIdentity
from verl_core_storage.local import LocalStorage

from tests.support.made import samples, spec, writer
from tests.support.points import killed_everywhere

pytestmark = pytest.mark.usefixtures("without_syncs")

FIRST, SECOND = spec(0), spec(1, version=1)


def commit(at: AtomicWriter, batch: int = 1) -> BatchRef:
    of = (FIRST, SECOND)[batch]
    return at.commit(at.stage(of, samples(of), worker="rollout-0", seed=7))


def check_and_go_on(root: Path) -> None:
    """What is there after a fault is whole, and the next attempt commits the batch as if nothing had happened."""
    at = writer(root, attempt=1)
    found = [ref.key for ref in at.scan()]
    assert found in ([FIRST.key], [FIRST.key, SECOND.key])
    for ref in at.scan():
        assert len(at.load(ref)) == 4
    for folder in root.glob("epoch_*/batch_*"):
        assert sorted(os.listdir(folder)) == ["SUCCESS", "meta.json", "samples.jsonl"]
    at.sweep()
    ref = commit(at)
    assert [r.key for r in at.scan()] == [FIRST.key, SECOND.key]
    assert ref.samples_hash == at.stage(SECOND, samples(SECOND), worker="", seed=7).ref.samples_hash
    assert len(at.load(ref)) == 4
    assert not list(root.glob(".staging/*"))


def checked_everywhere(tmp_path: Path, prepare: Callable[[Path], object], operation: Callable[[Path], object]) -> int:
    """Kill ``operation`` at each of its crash points, and go on after each; the number of points."""
    roots = 0
    for root in killed_everywhere(tmp_path, prepare, operation):
        check_and_go_on(root)
        roots += 1
    return roots - 1


def test_b2_a_commit_killed_at_any_operation_leaves_a_whole_batch_or_none(tmp_path: Path) -> None:
    points = checked_everywhere(tmp_path, lambda root: commit(writer(root), 0), lambda root: commit(writer(root)))
    assert points >= 15


def test_a_first_commit_of_a_run_killed_at_any_operation_leaves_a_whole_batch_or_none(tmp_path: Path) -> None:
    n = 1
    while killed_at(n, partial(commit, writer(tmp_path / str(n)), 0)):
        root = tmp_path / str(n)
        assert len(list(writer(root).scan())) in (0, 1)
        assert commit(writer(root, attempt=1), 0).key == FIRST.key
        n += 1
    assert n >= 15


def test_a_sweep_killed_at_any_operation_can_be_done_again(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        commit(writer(root), 0)
        assert killed_at(13, lambda: commit(writer(root)))
        folder = root / "epoch_0/batch_1"
        folder.mkdir(exist_ok=True)
        (folder / "samples.jsonl").write_bytes(b"never committed")

    n = 1
    while True:
        root = tmp_path / str(n)
        prepare(root)
        killed = killed_at(n, writer(root, attempt=1).sweep)
        writer(root, attempt=1).sweep()
        check_and_go_on(root)
        if not killed:
            break
        n += 1
    assert n > 4


def test_a_condemnation_killed_at_any_operation_leaves_the_batch_in_one_place(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        commit(writer(root), 0)
        commit(writer(root))

    def condemn(root: Path) -> None:
        at = writer(root)
        at.condemn(list(at.scan())[1])

    assert checked_everywhere(tmp_path, prepare, condemn) >= 2


@pytest.mark.parametrize("error", [StorageFull, StorageReadOnly, StorageDenied])
def test_a_commit_that_fails_at_any_change_leaves_no_trace_and_succeeds_when_tried_again(
    tmp_path: Path, error: type[StorageError]
) -> None:
    n = 1
    while True:
        root = tmp_path / str(n)
        commit(writer(root), 0)
        storage = FailingStorage(LocalStorage(str(root)), n, error)
        at = AtomicWriter(storage, RunIdentity("run", 0, 0))
        try:
            commit(at)
        except error:
            assert [ref.key for ref in at.scan()] == [FIRST.key]
            assert not list((root / ".staging").glob("*/*"))
            commit(at)
        assert [ref.key for ref in at.scan()] == [FIRST.key, SECOND.key], "what returns has committed"
        check_and_go_on(root)
        if storage.changes < n:
            break
        n += 1
    assert n == 5


# --- what is wrong on the way, or later ---------------------------------------------------------


class Rotten(LocalStorage):
    """Spoils one byte of every file of this name, on its way to the disk."""

    name = ""

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        whole = bytearray(data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data))
        if path.endswith(self.name):
            whole[len(whole) // 2] ^= 1
        return super().write(path, bytes(whole))


@pytest.mark.parametrize("name", ["samples.jsonl", "meta.json"])
def test_a_batch_that_reads_back_differently_is_not_committed(tmp_path: Path, name: str) -> None:
    commit(writer(tmp_path), 0)
    storage = Rotten(str(tmp_path))
    storage.name = name
    with pytest.raises(DamagedBatch, match=name):
        commit(AtomicWriter(storage, RunIdentity("run", 0, 0)))
    check_and_go_on(tmp_path)


def test_whole_samples_of_another_batch_are_not_taken_for_these(tmp_path: Path) -> None:
    """A file that is good by itself, in the wrong place."""
    at = writer(tmp_path)
    commit(at, 0)
    ref = commit(at)
    shutil.copy(tmp_path / "epoch_0/batch_0/samples.jsonl", tmp_path / "epoch_0/batch_1/samples.jsonl")
    with pytest.raises(DamagedBatch, match="differ from their hash"):
        at.load(ref)
