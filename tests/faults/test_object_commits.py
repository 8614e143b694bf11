"""Commits on an object store, with answers lost, calls that land late, deaths and races at every operation.

Writers differ in what they generated, as where bits do not reproduce: a mix of two would show.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import pytest
from verl_core.errors import DamagedBatch, StorageTimeout
from verl_core.protocols import Storage
from verl_core.rollout.beside import at_once, beside
from verl_core.rollout.objects import ObjectWriter
from verl_core.testing.faulty_objects import Death, Killed, LostAnswer, Puppet, Watched
from verl_core.testing.memory import MemoryObjects
from verl_core.types import BatchRef, RunIdentity

from tests.support.made import samples
from tests.support.races import FILES, SPEC, drawn_by

Beside = Callable[[Callable[[], bytes]], Callable[[], bytes]]
STEPS = 5  # operations of a commit that nothing disturbs


def writer(storage: Storage, attempt: int = 0, beside: Beside = at_once) -> ObjectWriter:
    """By default one operation after the other, so that each has its number."""
    return ObjectWriter(storage, RunIdentity("run", 0, attempt), clock=lambda: 1.8e9 + attempt, seed=7, beside=beside)


def commit(storage: Storage, worker: int = 0, beside: Beside = at_once) -> BatchRef:
    """By a worker of attempt ``worker``; tried again as the writer thread does it."""
    at = writer(storage, worker, beside)
    staged = at.stage(SPEC, drawn_by(worker), worker=f"rollout-{worker}", seed=7)
    for _ in range(3):
        try:
            return at.commit(staged)
        except StorageTimeout:
            continue
    return at.commit(staged)


def check(store: Storage, ref: BatchRef) -> int:
    """The batch is whole, the one of the ref, and alone; returns who drew it."""
    at = writer(store, 99)
    assert [stat.path for stat in store.list()] == [f"{SPEC.key}/{name}" for name in FILES]
    assert list(at.scan()) == [ref]
    found = at.load(ref)
    [worker] = {round(sample.reward - fresh.reward) for sample, fresh in zip(found, samples(SPEC), strict=True)}
    assert [sample.reward for sample in found] == [sample.reward for sample in drawn_by(worker)]
    return worker


def test_a_commit_that_nothing_disturbs_takes_three_puts_and_reads_two_back() -> None:
    store = MemoryObjects()
    seen = Death(10**9)
    ref = commit(Watched(store, seen))
    assert seen.operations == STEPS
    assert check(store, ref) == 0


@pytest.mark.parametrize(
    "fault",
    [
        lambda n: LostAnswer(n),
        lambda n: LostAnswer(n, landed=True),
        *(lambda n, late=late: LostAnswer(n, late=late) for late in range(8)),
    ],
)
def test_b3_an_answer_that_is_lost_at_any_change_costs_nothing(fault: Callable[[int], LostAnswer]) -> None:
    for n in count(1):
        store, lost = MemoryObjects(), fault(n)
        ref = commit(Watched(store, lost))
        assert check(store, ref) == 0
        if lost.changes < n:
            break
    assert n == 4, "three changes"


@pytest.mark.parametrize("after", [False, True])
def test_b2_a_worker_that_dies_at_any_operation_leaves_a_whole_batch_or_none_and_the_next_goes_on(after: bool) -> None:
    for n in count(1):
        store, death = MemoryObjects(), Death(n, after=after)
        try:
            commit(Watched(store, death))
        except Killed:
            there = list(writer(store, 9).scan())
            assert len(there) == (n == STEPS and after), "only the last operation commits"
            ref = commit(store, 1)
            assert check(store, ref) == (0 if n > 1 or after else 1), "whoever created the samples won"
            assert ref.attempt == (0 if n > 3 or (n == 3 and after) else 1), "the record says who finished it"
        if not death.happened:
            break
    assert n == STEPS + 1


def test_b2_with_the_read_beside_the_next_write_a_death_anywhere_leaves_a_whole_batch_or_none() -> None:
    for n in range(1, STEPS + 1):
        store = MemoryObjects()
        with pytest.raises(Killed):
            commit(Watched(store, Death(n)), 0, beside)
        assert list(writer(store, 9).scan()) == []
        ref = commit(store, 1, beside)
        assert check(store, ref) == (0 if n > 1 else 1)


@pytest.mark.parametrize("after", [False, True])
def test_the_sweep_of_the_next_attempt_finishes_what_was_half_made(after: bool) -> None:
    for n in range(1, STEPS + 1):
        store = MemoryObjects()
        with pytest.raises(Killed):
            commit(Watched(store, Death(n, after=after)))
        begun, at = bool([*store.list()]), writer(store, 1)
        committed = list(at.scan())
        assert at.sweep() == ([str(SPEC.key)] if begun and not committed else [])
        assert at.sweep() == []
        if begun:
            [ref] = at.scan()
            assert check(store, ref) == 0
            assert commit(store, 1) == ref, "made again, it is dropped"


def test_a_sweep_that_dies_at_any_operation_can_be_done_again() -> None:
    for half in (1, 2):
        for n in count(1):
            store, death = MemoryObjects(), Death(n)
            with pytest.raises(Killed):
                commit(Watched(store, Death(half, after=True)))
            try:
                writer(Watched(store, death), 1).sweep()
            except Killed:
                writer(store, 2).sweep()
            [ref] = writer(store, 3).scan()
            assert check(store, ref) == 0
            if not death.happened:
                break
        assert n > 6


# --- races ---------------------------------------------------------------------------------------


def test_b3_of_two_workers_interleaved_at_every_pair_of_operations_one_wins_and_nothing_is_mixed() -> None:
    ends = []
    for first in range(STEPS + 1):
        for second in count():
            store = MemoryObjects()
            one, other = Puppet(store, lambda s: commit(s, 1)), Puppet(store, lambda s: commit(s, 2))
            one.go(first)
            done = other.go(second)
            refs = one.end(), other.end()
            assert refs[0] == refs[1], (first, second)
            winner = check(store, refs[0])
            assert winner == (1 if first else 2 if second else winner)
            ends.append(second)
            if done:
                break
    assert max(ends) > STEPS, "who finds the other's objects looks at them"


def test_b3_a_worker_frozen_at_any_operation_and_woken_after_another_one_finished_learns_who_won() -> None:
    for frozen in range(STEPS + 1):
        store = MemoryObjects()
        one = Puppet(store, lambda s: commit(s, 1))
        one.go(frozen)
        ref = commit(store, 2)
        assert check(store, ref) == (1 if frozen else 2)
        assert one.end() == ref
        assert check(store, ref) == (1 if frozen else 2)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("read", [at_once, beside])
def test_b3_sixteen_workers_in_any_order_agree_on_one_batch(seed: int, read: Beside) -> None:
    dice, store = random.Random(seed), MemoryObjects()
    workers = {n: Puppet(store, lambda s, n=n: commit(s, n, read)) for n in range(16)}  # type: ignore[misc]
    waiting = list(workers)
    while waiting:
        chosen = dice.choice(waiting)
        if workers[chosen].go(dice.choice((1, 1, 2, 3))):
            waiting.remove(chosen)
    refs = {worker.end() for worker in workers.values()}
    assert len(refs) == 1
    check(store, refs.pop())


def test_b3_lost_answers_and_late_landings_in_a_race_mix_nothing() -> None:
    for n in range(1, 4):
        for late in range(10):
            for first in range(STEPS + 1):
                store = MemoryObjects()
                one = Puppet(store, lambda s, n=n, late=late: commit(Watched(s, LostAnswer(n, late=late)), 1))  # type: ignore[misc]
                one.go(first)
                ref = commit(store, 2)
                assert one.end() == ref
                check(store, ref)


# --- damage and its replacement ------------------------------------------------------------------


def damaged(store: Storage) -> BatchRef:
    ref = commit(store)
    store.put(f"{SPEC.key}/samples.jsonl", b"damage")
    with pytest.raises(DamagedBatch):
        writer(store).load(ref)
    return ref


@pytest.mark.parametrize("after", [False, True])
def test_a_condemnation_and_its_replacement_that_die_at_any_operation_are_done_again(after: bool) -> None:
    def repair(storage: Storage, ref: BatchRef) -> BatchRef:
        at = writer(storage, 1)
        assert at.condemn(ref) == str(ref.key)
        return commit(storage, 1)

    for n in count(1):
        store, death = MemoryObjects(), Death(n, after=after)
        ref = damaged(store)
        try:
            made = repair(Watched(store, death), ref)
        except Killed:
            at = writer(store, 2)
            assert [r.samples_hash for r in at.scan()] in ([], [ref.samples_hash], [commit_hash(1)])
            at.sweep()
            if not (there := list(at.scan())) or there == [ref]:
                made = repair(store, ref)
            else:
                [made] = there
        assert made.samples_hash == commit_hash(1)
        assert list(writer(store, 3).scan()) == [made]
        assert [s.reward for s in writer(store, 3).load(made)] == [s.reward for s in drawn_by(1)]
        assert store.get(f"{SPEC.key}/samples.jsonl") == b"damage", "kept for a person"
        if not death.happened:
            break
    assert n > STEPS + 2


def commit_hash(worker: int) -> str:
    return writer(MemoryObjects()).stage(SPEC, drawn_by(worker), worker="", seed=7).ref.samples_hash


def test_two_who_replace_a_condemned_batch_at_once_agree_too() -> None:
    for first in range(STEPS + 4):
        for second in range(STEPS + 4):
            store = MemoryObjects()
            ref = damaged(store)
            writer(store).condemn(ref)
            one, other = Puppet(store, lambda s: commit(s, 1)), Puppet(store, lambda s: commit(s, 2))
            one.go(first)
            other.go(second)
            found = one.end()
            assert other.end() == found
            assert list(writer(store).scan()) == [found]
            writer(store).load(found)


# --- a store that ignores create-if-absent -------------------------------------------------------


def careless() -> MemoryObjects:
    return MemoryObjects(conditional_put=False)


def test_on_a_store_that_overwrites_each_attempt_keeps_to_its_own_names() -> None:
    for frozen in range(9):
        store = careless()
        one = Puppet(store, lambda s: commit(s, 1))
        one.go(frozen)
        second = commit(store, 2)
        first = one.end()
        for ref in {first, second}:
            assert [s.reward for s in writer(store).load(ref)] == [s.reward for s in drawn_by(ref.attempt)]
        assert list(writer(store).scan()) in ([first], [second])


@pytest.mark.parametrize("after", [False, True])
def test_on_a_store_that_overwrites_a_death_at_any_operation_leaves_a_whole_batch_or_none(after: bool) -> None:
    for n in count(1):
        store, death = careless(), Death(n, after=after)
        try:
            ref = commit(Watched(store, death), 1)
        except Killed:
            assert writer(store, 2).sweep() == []
            there = list(writer(store, 2).scan())
            ref = commit(store, 2)
            assert ref.attempt == (1 if there else 2)
        assert list(writer(store, 3).scan()) == [ref]
        assert len(writer(store, 3).load(ref)) == 4
        if not death.happened:
            break
    assert n > STEPS


def test_on_a_store_that_overwrites_late_landings_change_nothing() -> None:
    for n in range(1, 4):
        for late in range(12):
            store = careless()
            ref = commit(Watched(store, LostAnswer(n, late=late)), 1)
            assert commit(store, 2) == ref
            assert list(writer(store, 3).scan()) == [ref]
            writer(store, 3).load(ref)
