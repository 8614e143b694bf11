"""Saving behind training with one checkpoint kept, killed or failed at every operation: one good is always there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from verl_core.checkpoint.keeper import Keeper
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedCheckpoint, StorageFull, StorageTimeout
from verl_core.protocols import FileStorage
from verl_core.testing.faulty import FailingStorage
from verl_core.types import CheckpointRef, RunIdentity
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

from tests.support.made import checkpointer, state
from tests.support.points import killed_everywhere

pytestmark = pytest.mark.usefixtures("without_syncs")


def save(storage: FileStorage, step: int, attempt: int = 0, patience_s: float = 0.0) -> None:
    """A save and what retention gives up for it, as a run does it."""
    writes = WriteQueue(patience_s=patience_s)
    keeper = Keeper(ShardedCheckpointer(storage, RunIdentity("run", 0, attempt)), writes, keep=1)
    keeper.save(state(step, ranks=1, attempt=attempt))
    writes.barrier()
    for saved in keeper.news():
        keeper.delete(saved.expired)
    writes.close()


def good(root: Path) -> list[int]:
    """Steps of those that are listed: all are whole, and no folder with a mark is not."""
    at = checkpointer(root)
    for ref in at.list():
        at.verify(ref)
    assert {mark.parent.name for mark in root.glob("step_*/SUCCESS")} == {ref.name for ref in at.list()}
    return [ref.step for ref in at.list()]


def check_and_go_on(root: Path) -> None:
    assert good(root) in ([5], [10, 5], [10])
    checkpointer(root, attempt=1).sweep()
    save(LocalStorage(str(root)), 10, attempt=1)
    assert good(root) == [10]
    save(LocalStorage(str(root)), 15, attempt=1)
    assert good(root) == [15]
    assert not list(root.glob(".staging/*"))


def begin(root: Path) -> None:
    save(LocalStorage(str(root)), 5)


def test_c03_with_one_kept_a_kill_at_any_operation_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    roots = 0
    for root in killed_everywhere(tmp_path, begin, lambda root: save(LocalStorage(str(root)), 10)):
        check_and_go_on(root)
        roots += 1
    assert roots > 50


@pytest.mark.parametrize("lost", [False, True])
def test_c03_with_one_kept_a_failure_at_any_operation_leaves_a_good_checkpoint(tmp_path: Path, lost: bool) -> None:
    for n in count(1):
        root = tmp_path / str(n)
        begin(root)
        storage = FailingStorage(LocalStorage(str(root)), n, (StorageFull, StorageTimeout)[n % 2], lost=lost)
        try:
            save(storage, 10)
        except (StorageFull, StorageTimeout):
            assert good(root) in ([5], [10, 5], [10])
            save(storage, 10, patience_s=1)
        check_and_go_on(root)
        if storage.changes < n:
            break
    assert n > 12


def test_a_save_begins_with_an_empty_folder(tmp_path: Path) -> None:
    """What an earlier try of the same attempt left staged is not published with this one."""
    leftover = tmp_path / ".staging/step_000005_0/actor"
    leftover.mkdir(parents=True)
    (leftover / "shard_00007_0.safetensors").write_bytes(b"of a rank that is no more")
    begin(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("step_000005/actor/shard_*")) == ["shard_00000_0.safetensors"]


# --- which one is loaded ----------------------------------------------------------------------


@pytest.fixture
def writes() -> Iterator[WriteQueue]:
    queue = WriteQueue(patience_s=0)
    yield queue
    queue.close()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        checkpointer(tmp_path).save(state(step, ranks=1))
    return tmp_path


def loaded(root: Path, writes: WriteQueue, known: Sequence[CheckpointRef] = ()) -> tuple[int | None, list[str]]:
    """The step of the newest good one, and what was condemned on the way to it."""
    condemned: list[str] = []
    at = Keeper(checkpointer(root, attempt=1), writes, keep=3)
    found = at.newest_good({ref.step: ref for ref in known}, lambda ref, reason: condemned.append(ref.name))
    return (found[0].step if found else None), condemned


def test_the_newest_checkpoint_is_loaded(three: Path, writes: WriteQueue) -> None:
    assert loaded(three, writes) == (15, [])


def test_damaged_checkpoints_are_put_aside_and_the_good_one_before_them_is_loaded(
    three: Path, writes: WriteQueue
) -> None:
    for step in (10, 15):
        (three / f"step_{step:06d}/config.yaml").write_bytes(b"seed: 1\n")
    assert loaded(three, writes) == (5, ["step_000015", "step_000010"])
    assert good(three) == [5]
    assert sorted(os.listdir(three / ".condemned")) == ["step_000010.1", "step_000015.1"]


def test_a_checkpoint_that_the_journal_knows_must_be_that_very_one(three: Path, writes: WriteQueue) -> None:
    other = [replace(ref, summary_hash="blake3:other") for ref in checkpointer(three).list() if ref.step == 15]
    assert loaded(three, writes, known=other) == (10, ["step_000015"])


def test_a_checkpoint_that_was_named_and_is_damaged_is_an_error(three: Path, writes: WriteQueue) -> None:
    (three / "step_000010/config.yaml").write_bytes(b"damage")
    at = Keeper(checkpointer(three), writes, keep=3)
    with pytest.raises(DamagedCheckpoint, match=r"config\.yaml"):
        at.named("10", str(three))
    assert at.named("step_000015", str(three))[0].step == 15
