"""Two workers on one batch, held against each other at pairs of operations: one wins, nothing is mixed (B3)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from verl_core.errors import StorageFull
from verl_core.rollout.writer import AtomicWriter
from verl_core.testing.faulty import FailingStorage, paused_at
from verl_core.types import BatchRef, RunIdentity, StagedBatch
from verl_core_storage.local import LocalStorage

from tests.support.made import writer
from tests.support.pairs import OF, SAMPLES, commit, held_at_pairs, killed_beside, rounds, winner

pytestmark = pytest.mark.usefixtures("without_syncs")

EVERY = 3  # `make prove` tries all pairs


def answered(at: AtomicWriter, staged: StagedBatch) -> BatchRef | None:
    try:
        return at.commit(staged)
    except StorageFull:
        return None


def test_b3_a_worker_held_at_any_operation_while_another_commits_learns_who_won(tmp_path: Path) -> None:
    won = []
    for n, root in rounds(tmp_path):
        with paused_at(n, partial(commit, root, "a")) as held:
            commit(root, "b")
        won.append(winner(root, "a", "b"))
        assert not list(root.glob(".staging/*")), "the loser dropped its copy"
        if not held:
            break
    renamed = won.index("a")
    assert won == ["b"] * renamed + ["a"] * (len(won) - renamed), "who publishes first wins"
    assert 10 < renamed < len(won) - 1


def test_b3_two_workers_held_at_pairs_of_operations_agree_on_one_batch(tmp_path: Path) -> None:
    pairs, winners = held_at_pairs(tmp_path, EVERY)
    assert pairs > 80
    assert winners == {"a", "b"}


def test_b3_a_worker_killed_at_any_operation_beside_one_that_is_held_leaves_it_the_batch(tmp_path: Path) -> None:
    assert killed_beside(tmp_path, EVERY) > 80


def test_b3_a_late_write_of_a_worker_that_was_given_up_changes_nothing(tmp_path: Path) -> None:
    """Its replacement's batch was trained on long ago, and swept around."""
    for n, root in rounds(tmp_path):
        with paused_at(n, partial(commit, root, "a")) as held:
            ref = commit(root, "b")
            writer(root).sweep()  # of the same attempt: the living are left alone
        assert list(writer(root).scan()) == [ref]
        assert len(writer(root).load(ref)) == 4
        if not held:
            break
    assert n > 15


def test_b3_a_worker_whose_answer_was_lost_meets_its_own_batch_or_the_others(tmp_path: Path) -> None:
    """Every change takes effect, but one of them is not answered; then the other worker commits, and it tries again."""
    for n, root in rounds(tmp_path):
        storage = FailingStorage(LocalStorage(str(root)), n, lost=True)
        at = AtomicWriter(storage, RunIdentity("run", 0, 0), clock=lambda: 1.8e9)
        staged = at.stage(OF, SAMPLES["a"], worker="a", seed=7)
        first = answered(at, staged)
        other = commit(root, "b")
        again = answered(at, staged) or at.commit(staged)
        assert again == other == (first or other)
        winner(root, "b")
        if storage.changes < n:
            break
    assert n >= 5
