"""A save with its retention, killed or failed at every operation: at each moment at least one good checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from verl_core.checkpoint.retention import to_delete
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedCheckpoint, StorageFull
from verl_core.testing.faulty import FailingStorage
from verl_core.types import CheckpointRef, RunIdentity
from verl_core_storage.local import LocalStorage

from tests.support.made import checkpointer, state
from tests.support.points import killed_everywhere

pytestmark = pytest.mark.usefixtures("without_syncs")


def save_and_prune(at: ShardedCheckpointer, attempt: int = 0) -> None:
    """A save of step 10, then retention that keeps one."""
    ref = at.save(state(10, attempt=attempt))
    for old in to_delete(at.list(), 1, {ref.step}):
        at.delete(old)


def good(at: ShardedCheckpointer) -> list[CheckpointRef]:
    found = []
    for ref in at.list():
        try:
            assert at.open(ref).step == ref.step
        except DamagedCheckpoint:
            continue
        found.append(ref)
    return found


def check_and_go_on(root: Path) -> None:
    """What is listed is good, there is one at least, and the next attempt ends where an undisturbed one does."""
    at = checkpointer(root, attempt=1)
    assert good(at) == at.list() != []
    nothing_half_written(root)
    finish(root)


def nothing_half_written(root: Path) -> None:
    """Under the names that readers look at, there are whole checkpoints only."""
    assert {folder.name for folder in root.glob("step_*")} == {ref.name for ref in checkpointer(root).list()}


def finish(root: Path) -> None:
    at = checkpointer(root, attempt=1)
    at.sweep()
    save_and_prune(at, attempt=1)
    assert [ref.step for ref in good(at)] == [ref.step for ref in at.list()] == [10]
    assert not list(root.glob(".staging/*"))


def checked_everywhere(tmp_path: Path, prepare: Callable[[Path], object], check: Callable[[Path], object]) -> int:
    """Kill a save with its retention at each of its crash points, and ``check`` each; the number of points."""
    roots = 0
    for root in killed_everywhere(tmp_path, prepare, lambda root: save_and_prune(checkpointer(root))):
        check(root)
        roots += 1
    return roots - 1


def test_c03_c14_with_one_kept_a_good_checkpoint_stands_at_every_moment(tmp_path: Path) -> None:
    points = checked_everywhere(tmp_path, lambda root: checkpointer(root).save(state(5)), check_and_go_on)
    assert points >= 60


def test_the_first_save_of_a_run_killed_anywhere_is_there_or_not(tmp_path: Path) -> None:
    def check(root: Path) -> None:
        at = checkpointer(root, attempt=1)
        assert good(at) == at.list()
        nothing_half_written(root)
        finish(root)

    assert checked_everywhere(tmp_path, lambda root: None, check) >= 40


def test_replacing_a_damaged_checkpoint_never_costs_the_good_one(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        for step in (5, 10):
            checkpointer(root).save(state(step))
        (root / "step_000010/rng_state.msgpack").write_bytes(b"damage")

    def check(root: Path) -> None:
        assert good(checkpointer(root, attempt=1))
        finish(root)

    assert checked_everywhere(tmp_path, prepare, check) >= 60


def test_c11_a_save_that_fails_at_any_change_costs_nothing_and_succeeds_when_tried_again(tmp_path: Path) -> None:
    n = 1
    while True:
        root = tmp_path / str(n)
        checkpointer(root).save(state(5))
        storage = FailingStorage(LocalStorage(str(root)), n, StorageFull)
        at = ShardedCheckpointer(storage, RunIdentity("run", 0, 0))
        try:
            save_and_prune(at)
        except StorageFull:
            assert good(at) == at.list() != []
            assert not list((root / ".staging").glob("step_000010_0/*"))
            save_and_prune(at)
        check_and_go_on(root)
        if storage.changes < n:
            break
        n += 1
    assert n > 15
