"""Power cuts at every moment: a short run of the enumeration, and the proof that it finds what it is there to find."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
from verl_core.actions import Actions
from verl_core.checkpoint.keeper import Keeper
from verl_core.committed import SUCCESS
from verl_core.protocols import FileStorage
from verl_core.rollout.handover import HandOver
from verl_core.rollout.writer import AtomicWriter
from verl_core.testing.crash_states import crash_states
from verl_core.testing.disk import without_syncs
from verl_core.types import BatchKey, BatchRef, CheckpointState, StagedBatch
from verl_core_storage import posix
from verl_core_storage.local import LocalStorage

from prove.crash_scenes import SCENES
from prove.crash_search import Found, Search, Workload, replay, workloads
from prove.crash_states import PARTS, workplace

Patch = pytest.MonkeyPatch
FOREVER = float("inf")


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk() -> Iterator[None]:
    """The recorder sees the calls; what they would do to this machine's disk only costs time."""
    with without_syncs():
        yield


@pytest.fixture
def place() -> Iterator[str]:
    with workplace() as folder:
        yield folder


@pytest.fixture
def search(place: str) -> Search:
    return Search(place, 1, limit=4, nested=0.0)


def found(search: Search, scene: str, most: int) -> list[str]:
    """The first violations in a scene."""
    return search.run(workloads(1, [scene]), time.monotonic() + 30, most).violations


# --- the product -----------------------------------------------------------------------------


SHORT = [  # workloads, states of one cut, share of the recoveries that are cut in turn
    ("run-keep1", 4, 2, 0.013),
    ("run-keep2-apart", 2, 2, 0.03),
    *((scene, 12, 3, 0.05) for scene in SCENES if not scene.startswith("run")),
]


@pytest.mark.parametrize(("scene", "count", "limit", "nested"), SHORT)
def test_b2_c14_every_state_that_a_power_cut_leaves_is_recovered_from(
    place: str, scene: str, count: int, limit: int, nested: float
) -> None:
    search = Search(place, 1, limit=limit, deep=0.2, nested=nested)
    result = search.run(itertools.islice(workloads(1, [scene]), count), FOREVER)
    assert result.violations == []
    assert result.states[scene] > 100
    assert min(result.nested, result.again) > 10


CASES = [
    pytest.param("folder", "lines", id="lines of one append are torn anywhere"),
    pytest.param("folder", "lines@1,open@2,lines", id="the run folder was made, and not synced, by a dead process"),
    pytest.param("folder-apart", "lines@49,lines", id="the state log was made by a dead process"),
    pytest.param("batches", "first@24,late@16,first", id="a batch was renamed, and not synced, by a dead process"),
    pytest.param("saves", "again@16,rot,save@3,save", id="the checkpoints' folder was made by a dead process"),
]


@pytest.mark.parametrize(("scene", "operations"), CASES)
def test_a_case_that_once_was_broken_is_recovered_from(place: str, scene: str, operations: str) -> None:
    search = Search(place, 1, limit=16, nested=0.0)
    result = search.run(iter([Workload(scene, tuple(operations.split(",")))]), FOREVER)
    assert result.violations == []
    assert result.states[scene] >= 5


# --- the search ------------------------------------------------------------------------------


def test_a_seed_decides_which_states_are_checked_and_each_is_checked_once(place: str) -> None:
    def states(name: str, seed: int) -> Found:
        search = Search(f"{place}/{name}", seed, limit=4, nested=0.02)
        return search.run(itertools.islice(workloads(seed, ["folder"]), 12), FOREVER)

    one, again, other = states("one", 5), states("again", 5), states("other", 6)
    assert one == again
    assert len(one.digests) == one.states.total() > 100
    assert one.nested > 0
    assert len(one.digests & other.digests) < len(other.digests)


def test_every_scene_has_its_process() -> None:
    assert sorted(itertools.chain(*PARTS)) == sorted(SCENES)


def test_a_violation_is_named_so_that_it_comes_back(search: Search, monkeypatch: Patch) -> None:
    without_file_syncs(monkeypatch)
    for violation in found(search, "batches", 5):
        name, _, what = violation.partition(" — ")
        assert search.check(*replay(search, name), deep=False) == what


def test_a_state_of_a_recovery_is_named_so_that_it_comes_back(place: str, monkeypatch: Patch) -> None:
    search = Search(place, 1, limit=4, nested=0.3)
    without_file_syncs(monkeypatch)
    nested = [name for name in found(search, "batches", 60) if name.split(" — ")[0].count(":") == 5]
    assert nested
    for violation in nested[:3]:
        name, _, what = violation.partition(" — ")
        assert search.check(*replay(search, name), deep=False) == what


@pytest.mark.parametrize("name", ["", "batches:first", "nowhere:first:1:0", "batches:first:1:0:2"])
def test_a_name_of_no_state_is_refused(search: Search, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a crash state"):
        replay(search, name)


# --- planted defects -------------------------------------------------------------------------


def without_file_syncs(patch: Patch) -> None:
    write = posix.write
    patch.setattr(posix, "write", lambda path, data, flags, *, sync: write(path, data, flags, sync=False))


def without_log_syncs(patch: Patch) -> None:
    append = LocalStorage.append
    patch.setattr(LocalStorage, "append", lambda self, path, data, *, sync: append(self, path, data, sync=False))


def without_folder_syncs(patch: Patch) -> None:
    patch.setattr(posix, "sync_folder", lambda path: None)


def without_syncs_of_the_staged_folder(patch: Patch) -> None:
    patch.setattr(posix, "sync_folders", lambda path: None)


def marker_before_data(patch: Patch) -> None:
    def commit(self: AtomicWriter, staged: StagedBatch) -> BatchRef:
        storage: FileStorage = self._storage
        for name, data in [(SUCCESS, b""), *staged.files.items()]:
            storage.put(f"{staged.ref.key}/{name}", data)
        return staged.ref

    patch.setattr(AtomicWriter, "commit", commit)


def rename_over_a_name_that_is_there(patch: Patch) -> None:
    def rename(source: str, goal: str) -> None:
        if os.path.isdir(goal):
            posix.remove(goal)
        os.rename(source, goal)

    def stat(self: LocalStorage, path: str) -> object:
        return None if path.startswith("epoch_") else known(self, path)

    known = LocalStorage.stat
    commit = AtomicWriter.commit

    def without_looking(self: AtomicWriter, staged: StagedBatch) -> BatchRef:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(LocalStorage, "stat", stat)
            return commit(self, staged)

    patch.setattr(posix, "rename_new", rename)
    patch.setattr(AtomicWriter, "commit", without_looking)


def retention_before_the_save(patch: Patch) -> None:
    save = Keeper.save

    def eager(self: Keeper, state: CheckpointState) -> None:
        for ref in self._checkpointer.list():
            self._checkpointer.delete(ref)
        save(self, state)

    patch.setattr(Keeper, "save", eager)


def deleted_before_it_is_journalled(patch: Patch) -> None:
    def tell_news(self: Actions) -> None:
        parts = self._parts
        for saved in parts.keeper.news():
            for old in saved.expired:
                parts.keeper.delete([old])
            parts.writes.barrier()
            self._note("checkpoint_committed", {"ref": saved.ref})
            if saved.expired:
                self._note("checkpoints_deleted", {"steps": [old.step for old in saved.expired]})

    patch.setattr(Actions, "tell_news", tell_news)


def journalled_before_it_is_committed(patch: Patch) -> None:
    """The commit is handed to the writer only when training is done with the batch: after its line."""
    late: dict[BatchKey, Callable[[], object]] = {}
    drop = HandOver.drop

    class Later:
        def submit(self, run: Callable[[], object]) -> None:
            late[BatchKey(0, len(late))] = run

    def build(self: HandOver, writer: AtomicWriter, writes: object, *, durable: bool = True) -> None:
        init(self, writer, Later(), durable=durable)  # type: ignore[arg-type]
        self.__dict__["real"] = writes

    def dropped(self: HandOver, keys: Iterable[BatchKey]) -> None:
        for key in sorted(late):
            self.__dict__["real"].submit(late.pop(key))
        drop(self, list(keys))

    init = HandOver.__init__
    patch.setattr(HandOver, "__init__", build)
    patch.setattr(HandOver, "drop", dropped)


def torn_lines_are_left_where_they_are(patch: Patch) -> None:
    patch.setattr("verl_core.state.folder.repair", lambda *_: None)
    patch.setattr(LocalStorage, "truncate", lambda self, path, size: None)


def leftovers_are_not_swept(patch: Patch) -> None:
    patch.setattr(AtomicWriter, "sweep", lambda self: [])


DEFECTS = [
    (without_file_syncs, "batches", ""),
    (without_file_syncs, "saves", ""),
    (without_file_syncs, "folder", ""),
    (without_log_syncs, "folder-apart", ""),
    (without_folder_syncs, "batches", ""),
    (without_folder_syncs, "folder", ""),
    (without_syncs_of_the_staged_folder, "batches", ""),
    (without_syncs_of_the_staged_folder, "saves", ""),
    (marker_before_data, "batches", ""),
    (rename_over_a_name_that_is_there, "batches", ""),
    (retention_before_the_save, "run-keep1", "go,go"),
    (deleted_before_it_is_journalled, "run-keep1", "go,go"),
    (journalled_before_it_is_committed, "run-keep1", "go"),
    (torn_lines_are_left_where_they_are, "folder", ""),
    (leftovers_are_not_swept, "batches", ""),
]


@pytest.mark.parametrize(
    ("defect", "scene", "operations"), DEFECTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_planted_defect_is_found(
    search: Search, monkeypatch: Patch, defect: Callable[[Patch], None], scene: str, operations: str
) -> None:
    defect(monkeypatch)
    todo = iter([Workload(scene, tuple(operations.split(",")))]) if operations else workloads(1, [scene])
    (violation,) = search.run(todo, time.monotonic() + 30, most=1).violations
    assert violation.startswith(f"{scene}:")


def test_a_missing_sync_shows_in_a_power_cut_and_not_in_a_kill(search: Search, monkeypatch: Patch) -> None:
    """The state in which everything is kept is the one that a killed process leaves."""
    without_file_syncs(monkeypatch)
    without_folder_syncs(monkeypatch)
    recorded = search.recorded(Workload("run-keep1", ("go",)))
    end = len(recorded.operations)
    killed, lost = crash_states(recorded.operations, random.Random(0), start={}, since=end, limit=2)
    assert (search.check(recorded, killed, deep=True), search.check(recorded, lost, deep=False) != "") == ("", True)
