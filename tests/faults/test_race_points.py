"""Two workers on one batch, held against each other at every pair of operations: one wins, nothing is mixed (B3)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from verl_core.errors import StorageFull
from verl_core.rollout.writer import AtomicWriter
from verl_core.testing.faulty import FailingStorage, killed_at, paused_at
from verl_core.types import BatchRef, RunIdentity, StagedBatch
from verl_core_storage.local import LocalStorage

from tests.support.made import samples, spec, writer

pytestmark = pytest.mark.usefixtures("without_syncs")

OF = spec(1, version=1)
# The same draws, but not the same bytes: the seeds are those of the schedule, the rewards tell whose batch it is.
SAMPLES = {worker: [replace(s, reward=s.reward + more) for s in samples(OF)] for worker, more in (("a", 0), ("b", 9))}


def commit(root: Path, worker: str) -> BatchRef:
    """What the worker is told is left beside the root."""
    at = writer(root)
    ref = at.commit(at.stage(OF, SAMPLES[worker], worker=worker, seed=7))
    root.with_name(f"{root.name}.{worker}").write_text(repr(ref))
    return ref


def answered(at: AtomicWriter, staged: StagedBatch) -> BatchRef | None:
    try:
        return at.commit(staged)
    except StorageFull:
        return None


def winner(root: Path, *told: str) -> str:
    """Whose batch it is. All who came to their end were told of this one, and it is whole."""
    at = writer(root)
    (ref,) = at.scan()
    found = at.load(ref)
    (owner,) = [worker for worker, made in SAMPLES.items() if [s.reward for s in made] == [s.reward for s in found]]
    for worker in told:
        assert root.with_name(f"{root.name}.{worker}").read_text() == repr(ref), worker
    folder = root / str(OF.key)
    assert sorted(os.listdir(folder)) == ["SUCCESS", "meta.json", "samples.jsonl"]
    assert f'"worker_id":"{owner}"' in (folder / "meta.json").read_text(), "data of one, record of the other"
    return owner


def rounds(folder: Path) -> Iterator[tuple[int, Path]]:
    return ((n, folder / f"held at {n}") for n in count(1))


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


def test_b3_two_workers_held_at_every_pair_of_operations_agree_on_one_batch(tmp_path: Path) -> None:
    winners: set[str] = set()
    for n, folder in rounds(tmp_path):
        for m, root in rounds(folder):
            with ExitStack() as both:
                a_held = both.enter_context(paused_at(n, partial(commit, root, "a")))
                b_held = both.enter_context(paused_at(m, partial(commit, root, "b")))
                # leaving, b runs to its end before a goes on
            winners.add(winner(root, "a", "b"))
            if not b_held:
                break
        if not a_held:
            break
    assert n > 15
    assert winners == {"a", "b"}


def test_b3_a_worker_killed_at_any_operation_beside_one_that_is_held_leaves_it_the_batch(tmp_path: Path) -> None:
    for n, folder in rounds(tmp_path):
        for m, root in rounds(folder):
            with paused_at(n, partial(commit, root, "a")) as held:
                killed = killed_at(m, partial(commit, root, "b"))
            winner(root, "a")
            writer(root, attempt=1).sweep()
            assert winner(root, "a")
            assert not list(root.glob(".staging/*"))
            if not killed:
                break
        if not held:
            break
    assert n > 15


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
