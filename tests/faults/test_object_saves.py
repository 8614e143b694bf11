"""Saves and retention on an object store, with answers lost, late landings, deaths and zombies at every operation."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TypeVar

import numpy as np
import pytest
from verl_core.checkpoint.retention import to_delete
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedCheckpoint, RunMismatch, StorageConflict, StorageTimeout
from verl_core.protocols import Storage
from verl_core.testing.faulty_objects import Death, Killed, LostAnswer, Puppet, Watched
from verl_core.testing.memory import MemoryObjects
from verl_core.types import CheckpointRef, RunIdentity, Slice

from tests.support.made import state, weights

T = TypeVar("T")
FILES = 11  # of a checkpoint of ``made.state``, without SUCCESS


def checkpointer(store: Storage, attempt: int = 0) -> ShardedCheckpointer:
    return ShardedCheckpointer(store, RunIdentity("run", 0, attempt), clock=lambda: 1.8e9 + attempt)


def save_and_prune(store: Storage, attempt: int = 0, keep: int = 1) -> CheckpointRef:
    """A save of step 10 and retention, tried again as the writer thread does it."""
    at = checkpointer(store, attempt)
    ref = patiently(lambda: at.save(state(10, attempt=attempt)))
    for old in patiently(lambda: to_delete(at.list(), keep, {ref.step})):
        patiently(lambda old=old: at.delete(old))  # type: ignore[misc]
    return ref


def patiently(task: Callable[[], T]) -> T:
    for _ in range(3):
        try:
            return task()
        except StorageTimeout:
            continue
    return task()


def good(store: Storage) -> list[int]:
    """Steps that are listed; every one of them must be whole and say what was saved."""
    at = checkpointer(store, 99)
    found = at.list()
    for ref in found:
        reader = at.open(ref)
        data = bytes(reader.read("actor", Slice("w", (0, 0), (6, 4))).data)
        assert np.array_equal(np.frombuffer(data, np.float32), weights(ref.step).ravel())
    return [ref.step for ref in found]


def begun() -> MemoryObjects:
    store = MemoryObjects()
    checkpointer(store).save(state(5))
    return store


def check_and_go_on(store: MemoryObjects, attempt: int = 1) -> None:
    """What is listed is good, there is one at least, and the next attempt ends where an undisturbed one does."""
    assert good(store) != []
    checkpointer(store, attempt).sweep()
    save_and_prune(store, attempt)
    assert good(store) == [10]
    checkpointer(store, attempt + 1).sweep()
    folders = {"/".join(stat.path.split("/")[:2]) for stat in store.list()}
    assert len(folders) == 2, "the mark, and one folder"
    assert len(list(store.list())) == FILES + 1


@pytest.mark.parametrize("after", [False, True])
def test_c03_c14_with_one_kept_a_good_checkpoint_stands_at_every_moment(after: bool) -> None:
    for n in count(1):
        store, death = begun(), Death(n, after=after)
        try:
            save_and_prune(Watched(store, death))
        except Killed:
            assert good(store) in ([5], [10, 5], [10])
        check_and_go_on(store)
        if not death.happened:
            break
    assert n > 2 * FILES


@pytest.mark.parametrize("late", [None, 0, 1, 2, 3, 5, 8, 13, 21, 34])
@pytest.mark.parametrize("landed", [False, True])
def test_an_answer_that_is_lost_at_any_change_costs_nothing(late: int | None, landed: bool) -> None:
    for n in count(1):
        store = begun()
        lost = LostAnswer(n, landed=landed, late=late)
        save_and_prune(Watched(store, lost))
        assert good(store) == [10]
        check_and_go_on(store)
        if lost.changes < n:
            break
    assert n > FILES


def test_c01_what_a_dead_attempt_left_half_written_does_not_block_the_same_step() -> None:
    for n in range(2, 40):
        store = MemoryObjects()
        with pytest.raises(Killed):
            save_and_prune(Watched(store, Death(n)))
        if good(store):
            break
        ref = checkpointer(store, 1).save(state(10, attempt=1))
        assert ref.attempt == 1
        assert good(store) == [10]
        [folder] = checkpointer(store, 1).sweep() if n > 2 else ["step_000010/attempt_0_x"]
        assert folder.startswith("step_000010/attempt_0_")
        assert good(store) == [10]
    assert n > 2 * FILES


def test_a_save_that_was_frozen_anywhere_and_wakes_after_another_one_is_dropped_or_kept_whole() -> None:
    for frozen in count():
        store = begun()
        one = Puppet(store, lambda s: save_and_prune(s, 1, keep=3))
        done = one.go(frozen)
        second = save_and_prune(store, 2, keep=3)
        checkpointer(store, 2).sweep()
        assert good(store) == [10, 5]
        with suppress(StorageConflict):  # its folder was swept while it slept
            assert one.end() == second, "both know the one that counts"
        assert good(store) == [10, 5]
        assert [ref for ref in checkpointer(store).list() if ref.step == 10] == [second]
        if done:
            break
    assert frozen > 2 * FILES


def test_a_mark_that_a_zombie_sets_on_what_was_swept_is_not_trusted_and_replaced() -> None:
    for frozen in count():
        store = begun()
        one = Puppet(store, lambda s: checkpointer(s, 1).save(state(10, attempt=1)))
        done = one.go(frozen)
        swept = checkpointer(store, 2).sweep()
        with suppress(StorageConflict):
            one.end()
        assert good(store) in ([5], [10, 5])
        checkpointer(store, 2).save(state(10, attempt=2))
        assert good(store) == [10, 5]
        if done:
            break
        assert bool(swept) == (frozen > 1)
    assert frozen > 2 * FILES


def test_two_saves_interleaved_at_every_pair_of_operations_agree_on_one() -> None:
    for first in range(0, 50, 3):
        for second in range(0, 50, 3):
            store = MemoryObjects()
            one = Puppet(store, lambda s: checkpointer(s, 1).save(state(10, attempt=1)))
            other = Puppet(store, lambda s: checkpointer(s, 2).save(state(10, attempt=2)))
            one.go(first)
            other.go(second)
            assert one.end() == other.end() == checkpointer(store).list()[0]
            assert good(store) == [10]


@pytest.mark.parametrize("after", [False, True])
def test_a_condemnation_that_dies_anywhere_is_done_again_and_keeps_the_data(after: bool) -> None:
    for n in count(1):
        store, death = begun(), Death(n, after=after)
        ref = checkpointer(store).save(state(10))
        [shard] = [s.path for s in store.list("step_000010") if re.search(r"actor/shard_00000", s.path)]
        store.put(shard, b"damage")
        try:
            checkpointer(Watched(store, death), 1).condemn(ref)
        except Killed:
            for listed in checkpointer(store, 2).list():
                if listed.step == 10:
                    checkpointer(store, 2).condemn(listed)
        assert good(store) == [5]
        assert checkpointer(store, 2).sweep() == []
        assert store.get(shard) == b"damage", "kept for a person"
        assert checkpointer(store, 2).save(state(10, attempt=2)).attempt == 2
        assert good(store) == [10, 5]
        if not death.happened:
            break
    assert n > 3


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_saved_again() -> None:
    for name in ("actor/manifest.json", "checkpoint_summary.json", "config.yaml", "SUCCESS"):
        store = begun()
        checkpointer(store).save(state(10))
        [path] = [s.path for s in store.list("step_000010") if s.path.endswith(name)]
        good_bytes = store.get(path)
        for bad in (
            b"",
            good_bytes[:-1],
            good_bytes[: len(good_bytes) // 2] + b"?" + good_bytes[len(good_bytes) // 2 :],
        ):
            store.put(path, bad)
            at = checkpointer(store, 1)
            [listed] = [ref for ref in at.list() if ref.step == 10]
            with pytest.raises(DamagedCheckpoint, match="step_000010/"):
                at.open(listed)
            ref = at.save(state(10, attempt=1))
            at.verify(ref)
            assert good(store) == [10, 5]
            [path] = [
                s.path
                for s in store.list("step_000010")
                if s.path.endswith(name) and ("attempt" not in s.path or s.path.split("/")[1] == picked(store))
            ]


def picked(store: MemoryObjects) -> str:
    return re.search(rb"attempt_\w+", store.get("step_000010/SUCCESS"))[0].decode()  # type: ignore[index]


def test_a_lost_file_is_named_and_the_checkpoint_not_listed() -> None:
    store = begun()
    ref = checkpointer(store).save(state(10))
    [path] = [s.path for s in store.list("step_000010") if s.path.endswith("config.yaml")]
    store.delete(path)
    assert [found.step for found in checkpointer(store).list()] == [5]
    with pytest.raises(DamagedCheckpoint, match=r"config\.yaml: the file is missing"):
        checkpointer(store).verify(ref)


def test_delete_is_harmless_twice_and_leaves_a_later_save_alone() -> None:
    store = begun()
    at = checkpointer(store)
    ref = at.save(state(10))
    at.delete(ref)
    at.delete(ref)
    assert good(store) == [5]
    assert list(store.list("step_000010")) == []
    again = checkpointer(store, 1).save(state(10, attempt=1))
    at.delete(ref)
    assert checkpointer(store).list()[0] == again
    with pytest.raises(RunMismatch, match="another policy"):
        at.save(replace(state(10), facts={"policy_digest": "sums:else"}))


def test_a_sweep_leaves_living_and_later_attempts_alone() -> None:
    store = MemoryObjects()
    for attempt in (1, 2, 3):
        with pytest.raises(Killed):
            checkpointer(Watched(store, Death(6)), attempt).save(state(10, attempt=attempt))
    swept = checkpointer(store, 2).sweep()
    assert [name.rsplit("_", 1)[0] for name in swept] == ["step_000010/attempt_1"]
    left = {stat.path.split("/")[1].rsplit("_", 1)[0] for stat in store.list()}
    assert left == {"attempt_2", "attempt_3"}


def test_on_a_store_that_overwrites_the_same_holds_for_one_committer() -> None:
    for n in count(1):
        store, death = MemoryObjects(conditional_put=False), Death(n)
        checkpointer(store).save(state(5))
        try:
            save_and_prune(Watched(store, death))
        except Killed:
            assert good(store) != []
        check_and_go_on(store)
        if not death.happened:
            break
    assert n > 2 * FILES
