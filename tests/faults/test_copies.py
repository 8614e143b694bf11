"""Checkpoints on this host first: the run's storage goes down, comes back, damages; the run dies at every operation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from verl_core.checkpoint.copies import LocalCopies
from verl_core.checkpoint.keeper import Keeper
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedCheckpoint, RunMismatch, StorageFull, StorageUnavailable
from verl_core.protocols import Storage
from verl_core.state.history import History, StepRecord
from verl_core.testing.faulty import killed_at
from verl_core.testing.faulty_objects import Operation, Watched
from verl_core.testing.memory import MemoryObjects
from verl_core.types import CheckpointRef, RunIdentity
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

from tests.support.made import state
from tests.support.object_runs import SMALL, Left, ObjectsOnDisk, controller, left

T = TypeVar("T")


class Door:
    """Lets operations through while it is open."""

    def __init__(self) -> None:
        self.open = True

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
        if not self.open:
            raise StorageUnavailable("down (injected)", where=operation.where)
        return call()


class Full(LocalStorage):
    """A disk without room."""

    def free_bytes(self) -> int:
        return 0


class Run:
    """Saves of one attempt: ``main`` is behind a door, ``local`` a folder."""

    def __init__(
        self,
        folder: Path,
        main: Storage,
        *,
        attempt: int = 0,
        limit_s: float = 60.0,
        local: type[LocalStorage] = LocalStorage,
    ) -> None:
        self.door, self.told = Door(), list[object]()
        self.main = ShardedCheckpointer(Watched(main, self.door), RunIdentity("run", 0, attempt))
        self.local = ShardedCheckpointer(local(str(folder)), RunIdentity("run", 0, attempt))
        copies = LocalCopies(self.local, self.main, keep=2, limit_s=limit_s, on_wait=self.told.append, retry_s=0.01)
        self.writes = WriteQueue(patience_s=0.0)
        self.keeper = Keeper(self.main, self.writes, 3, copies)
        self.committed: list[int] = []
        self._attempt = attempt

    def save(self, *steps: int) -> None:
        for step in steps:
            self.keeper.save(state(step, ranks=1, attempt=self._attempt))
        self.writes.barrier()

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not what():
            assert time.monotonic() < end
            self.tell()
            time.sleep(0.002)

    def tell(self) -> None:
        for saved in self.keeper.news():
            self.committed.append(saved.ref.step)
            self.keeper.delete(saved.expired)

    def close(self) -> None:
        self.keeper.close()
        self.tell()
        self.writes.close()


def steps(at: ShardedCheckpointer) -> list[int]:
    """Those that are listed; all must be whole."""
    for ref in at.list():
        at.verify(ref)
    return [ref.step for ref in at.list()]


def test_e5_each_save_is_here_first_and_the_same_in_the_runs_storage(tmp_path: Path) -> None:
    run = Run(tmp_path, MemoryObjects())
    for step in (5, 10, 15):
        run.save(step)
        assert steps(run.local)[0] == step
        run.until(lambda step=step: step in run.committed)  # type: ignore[misc]
    run.close()
    assert (steps(run.local), steps(run.main)) == ([15, 10], [15, 10, 5])
    assert run.main.list()[:2] == run.local.list()
    assert run.told == []


def test_e5_while_the_storage_is_down_training_goes_on_and_the_newest_goes_over_when_it_is_back(tmp_path: Path) -> None:
    run = Run(tmp_path, MemoryObjects())
    run.save(5)
    run.until(lambda: run.committed == [5])
    run.door.open = False
    run.save(10, 15, 20)
    run.until(lambda: len(run.told) > 3)
    assert steps(run.local)[0] == 20
    assert run.committed == [5]
    run.door.open = True
    run.until(lambda: 20 in run.committed)
    run.close()
    assert steps(run.main)[0] == 20
    assert set(steps(run.main)) <= {5, 10, 20}, "of those that waited the newest goes, beside the one that was tried"


def test_e5_down_for_too_long_is_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path, MemoryObjects(), limit_s=0.1)
    run.door.open = False
    run.save(5)
    with pytest.raises(StorageUnavailable):
        run.until(lambda: False)
    with pytest.raises(StorageUnavailable):
        run.close()


def test_e5_what_was_here_alone_when_the_run_died_is_carried_over_by_the_next_start(tmp_path: Path) -> None:
    store = MemoryObjects()
    run = Run(tmp_path, store)
    run.save(5)
    run.until(lambda: run.committed == [5])
    run.door.open = False
    run.save(10)
    run.close()
    assert run.committed == [5]
    again = Run(tmp_path, store, attempt=1)
    again.keeper.carry_over()
    assert steps(again.main) == [10, 5]
    assert again.main.list()[0] == again.local.list()[0]


def test_e5_a_storage_that_is_down_at_a_rebuild_is_no_hindrance(tmp_path: Path) -> None:
    store = MemoryObjects()
    run = Run(tmp_path, store)
    run.save(5)
    run.until(lambda: run.committed == [5])
    run.door.open = False
    run.save(10)
    run.door.open = True  # the thread waits for its next try, or has been there
    found = run.keeper.newest_good({}, lambda ref, reason: pytest.fail(reason))
    assert found is not None
    assert found[0].step == found[1].step == 10
    run.close()


def test_e5_a_start_goes_on_from_here_while_the_storage_is_down_and_brings_it_over_later(tmp_path: Path) -> None:
    store = MemoryObjects()
    run = Run(tmp_path, store)
    run.save(5)
    run.until(lambda: run.committed == [5])
    [known] = run.main.list()
    run.door.open = False
    run.save(10)
    run.close()
    again = Run(tmp_path, store, attempt=1)
    again.door.open = False
    again.keeper.carry_over()
    found = again.keeper.newest_good({5: known}, lambda ref, reason: pytest.fail(reason))
    assert found is not None
    assert found[0].step == found[1].step == 10
    assert again.keeper.here_alone(found[0])
    assert not again.keeper.here_alone(known)
    again.until(lambda: len(again.told) > 4)
    assert again.committed == []
    again.door.open = True
    again.until(lambda: again.committed == [10])
    again.close()
    assert steps(again.main) == [10, 5]


def test_e5_a_start_without_a_copy_here_needs_the_storage_that_has_one(tmp_path: Path) -> None:
    store = MemoryObjects()
    run = Run(tmp_path / "here", store)
    run.save(5)
    run.close()
    [known] = run.main.list()
    elsewhere = Run(tmp_path / "elsewhere", store, attempt=1)
    elsewhere.door.open = False
    with pytest.raises(StorageUnavailable):
        elsewhere.keeper.newest_good({5: known}, lambda ref, reason: None)
    assert elsewhere.keeper.newest_good({}, lambda ref, reason: None) is None, "it begins where nothing was saved yet"
    bare = Keeper(elsewhere.main, elsewhere.writes, 3)
    with pytest.raises(StorageUnavailable):
        bare.newest_good({}, lambda ref, reason: None)


def test_e5_the_claim_on_a_storage_that_was_down_comes_before_anything_is_brought_there(tmp_path: Path) -> None:
    store = MemoryObjects()
    here = ShardedCheckpointer(LocalStorage(str(tmp_path)), RunIdentity("run", 0, 0))
    here.save(state(10, ranks=1))
    main = ShardedCheckpointer(store, RunIdentity("run", 0, 1))

    def claim() -> None:
        assert not list(store.list())
        raise RunMismatch("it belongs to another run")

    copies = LocalCopies(here, main, keep=2, limit_s=60, claim=claim)
    with pytest.raises(RunMismatch):
        copies.carry_over()
    assert not list(store.list())


def test_e5_a_damaged_checkpoint_is_put_right_from_the_copy_here(tmp_path: Path) -> None:
    store, condemned = MemoryObjects(), list[CheckpointRef]()
    run = Run(tmp_path, store)
    run.save(5)
    run.close()
    [ref] = run.main.list()
    [victim] = [stat.path for stat in store.list() if stat.path.endswith("config.yaml")]
    store.put(victim, b"seed: 1\n")
    again = Run(tmp_path, store, attempt=1)
    found = again.keeper.newest_good({5: ref}, lambda ref, reason: condemned.append(ref))
    assert found is not None
    assert (found[0], found[1].file("config.yaml")) == (ref, b"seed: 0\n")
    assert [bad.step for bad in condemned] == [5]
    again.close()


def test_e5_a_damaged_copy_here_is_moved_aside_and_no_harm(tmp_path: Path) -> None:
    store = MemoryObjects()
    run = Run(tmp_path, store)
    run.door.open = False
    run.save(5)
    run.close()
    (tmp_path / "step_000005/config.yaml").write_bytes(b"seed: 1\n")
    again = Run(tmp_path, store, attempt=1)
    again.keeper.carry_over()
    assert (steps(again.main), steps(again.local)) == ([], [])
    assert [path.name for path in (tmp_path / ".condemned").iterdir()] == ["step_000005.1"]


def test_e5_a_copy_of_another_policy_is_never_put_over_the_runs_own(tmp_path: Path) -> None:
    store = MemoryObjects()
    other = ShardedCheckpointer(LocalStorage(str(tmp_path)), RunIdentity("run", 0, 0))
    ref = other.save(state(10, ranks=1))
    mine = ShardedCheckpointer(store, RunIdentity("run", 0, 1))
    kept = mine.save(state(10, ranks=1, attempt=1))  # the same policy, by another attempt
    mine.adopt(ref, other.contents(ref))
    assert mine.list() == [kept]
    mine.delete(kept)
    mine.save(replace(state(10, ranks=1, attempt=1), facts={"policy_digest": "sums:other"}))
    with pytest.raises(RunMismatch):
        mine.adopt(ref, other.contents(ref))


def test_e5_a_copy_of_steps_that_were_made_again_elsewhere_is_not_carried_over(tmp_path: Path) -> None:
    here = ShardedCheckpointer(LocalStorage(str(tmp_path)), RunIdentity("run", 0, 1))
    ref = here.save(state(10, ranks=1, attempt=1))
    for attempts, known in (
        ({9: 1, 10: 1}, True),
        ({9: 2, 10: 1}, False),
        ({9: 1, 11: 2, 10: 1}, True),
        ({9: 1}, False),
    ):
        history = History(steps={n: StepRecord(n, "", 0.5, (), {}, 0.0, at, 0.0) for n, at in attempts.items()})
        main = ShardedCheckpointer(MemoryObjects(), RunIdentity("run", 0, 3))
        LocalCopies(here, main, keep=2, limit_s=60, wanted=history.current).carry_over()
        assert main.list() == ([ref] if known else [])


def test_e5_a_copy_that_was_cut_short_on_its_way_is_not_committed(tmp_path: Path) -> None:
    here = ShardedCheckpointer(LocalStorage(str(tmp_path)), RunIdentity("run", 0, 0))
    ref = here.save(state(10, ranks=1))
    for cut in range(len([*here.contents(ref)[1]])):
        summary, files = here.contents(ref)
        short = ((path, iter([b""]) if n == cut else blocks) for n, (path, blocks) in enumerate(files))
        main = ShardedCheckpointer(MemoryObjects(), RunIdentity("run", 0, 0))
        with pytest.raises(DamagedCheckpoint):
            main.adopt(ref, (summary, short))
        assert main.list() == []


def test_e5_without_room_here_saves_go_to_the_runs_storage(tmp_path: Path) -> None:
    run = Run(tmp_path, MemoryObjects(), local=Full)
    run.save(5, 10)
    run.close()
    assert (steps(run.main), run.committed) == ([10, 5], [5, 10])
    assert all(isinstance(error, StorageFull) for error in run.told)
    assert len(run.told) == 2


def test_e5_threads_end_with_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, MemoryObjects())
    run.save(5)
    run.close()
    end = time.monotonic() + 5
    while any(thread.name == "verl-copies" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)


# --- whole runs ------------------------------------------------------------------------------


class Closed:
    """Operations number ``first`` to ``last`` on the store fail."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last, self._seen = first, last, 0

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
        self._seen += 1
        if self._first <= self._seen <= self._last:
            raise StorageUnavailable("down (injected)", where=operation.where)
        return call()


def go(folder: Path, around: Callable[..., object] | None = None, steps: int = 4) -> object:
    """A light run in a folder, its checkpoints in objects that are files of another, copies in a third."""
    store = ObjectsOnDisk(LocalStorage(str(folder / "objects")))
    watched = store if around is None else Watched(store, around)  # type: ignore[arg-type]
    keys = ("storage.checkpoint_uri=memory://bucket/saves", f"backup.local_backup_dir={folder}/copies")
    return controller(lambda _: watched, steps, changes=(*SMALL, *keys), run=str(folder / "run")).run()


def left_in(folder: Path) -> Left:
    saves = ObjectsOnDisk(LocalStorage(str(folder / "objects")))
    return left(LocalStorage(str(folder / "run")), saves=saves)


def undisturbed(folder: Path) -> Left:
    go(folder)
    return left_in(folder)


def same_end(found: Left, want: Left) -> None:
    assert found.batches == want.batches
    assert found.history.policy_digest == want.history.policy_digest
    assert found.history.step in found.history.checkpoints


def test_e5_a_run_with_copies_ends_the_same_wherever_it_dies_and_its_storage_goes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.checkpoint.copies.RETRY_S", 0.01)
    want = undisturbed(tmp_path / "reference")
    died = 0
    for n in count(7, 61):
        folder = tmp_path / f"{n}"
        killed = killed_at(n, lambda: go(folder, Closed(25 + n % 31, 60 + n % 17)))  # noqa: B023 - called at once
        died += killed
        go(folder)
        same_end(left_in(folder), want)
        if not killed:
            break
    assert died > 4


def test_e5_a_run_begins_only_where_its_storage_is_there_and_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.checkpoint.copies.RETRY_S", 0.01)
    want = undisturbed(tmp_path / "reference")
    with pytest.raises(StorageUnavailable):
        go(tmp_path, Closed(1, 10**9))
    go(tmp_path, steps=2)
    go(tmp_path, Closed(1, 10**9))
    found = left_in(tmp_path)
    assert (found.batches, found.history.policy_digest) == (want.batches, want.history.policy_digest)
    go(tmp_path, Closed(1, 10**9), steps=6)
    for history in (found.history, left_in(tmp_path).history):
        assert set(history.checkpoints) == {2}, "what lies on this host alone is not in the state log"
    go(tmp_path, steps=6)
    assert 6 in left_in(tmp_path).history.checkpoints


def test_e5_wherever_a_run_dies_it_goes_on_while_its_storage_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.checkpoint.copies.RETRY_S", 0.01)
    want = undisturbed(tmp_path / "reference")
    died = 0
    for n in count(11, 53):
        folder = tmp_path / f"{n}"
        killed = killed_at(n, lambda: go(folder))  # noqa: B023 - called at once
        died += killed
        with suppress(StorageUnavailable):  # nothing was begun yet
            go(folder, Closed(1, 9 + n % 23))
        go(folder)
        same_end(left_in(folder), want)
        if not killed:
            break
    assert died > 4
