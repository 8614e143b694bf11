"""The fault injectors themselves: killed or held where they say, failing what they say and as often, and no more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from verl_core.errors import StorageError, StorageFull, StorageTimeout
from verl_core.protocols import FileStorage, Storage
from verl_core.testing import crash
from verl_core.testing.faulty import FailingObjects, FailingStorage, killed_after, paused_at
from verl_core.testing.memory import MemoryFiles, MemoryObjects


def mark(folder: Path) -> None:
    """A file, a crash point, a file."""
    (folder / "before").touch()
    crash.point("between")
    (folder / "after").touch()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- processes --------------------------------------------------------------------------------


def test_an_operation_is_held_at_its_point_and_goes_on_afterwards(tmp_path: Path) -> None:
    with paused_at(1, lambda: mark(tmp_path)) as held:
        assert held
        assert names(tmp_path) == ["before"]
    assert names(tmp_path) == ["after", "before"]


def test_an_operation_that_ends_before_its_point_is_not_held(tmp_path: Path) -> None:
    with paused_at(2, lambda: mark(tmp_path)) as held:
        assert not held
        assert names(tmp_path) == ["after", "before"]


def test_one_that_is_held_goes_on_also_when_the_body_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError), paused_at(1, lambda: mark(tmp_path)):
        raise KeyError
    assert names(tmp_path) == ["after", "before"]


def test_an_operation_that_fails_after_it_was_held_is_an_error() -> None:
    def broken() -> None:
        crash.point("here")
        raise ValueError

    with pytest.raises(AssertionError, match="failed by itself"), paused_at(1, broken):
        pass


def test_an_operation_is_killed_after_its_time_or_ends_before() -> None:
    begin = time.monotonic()
    assert killed_after(0.05, lambda: time.sleep(30))
    assert time.monotonic() - begin < 10
    assert not killed_after(30, lambda: None)
    with pytest.raises(AssertionError, match="failed by itself"):
        killed_after(30, lambda: 1 / 0)


# --- storages ---------------------------------------------------------------------------------


def failing(fail_at: int, error: type[StorageError] = StorageFull, **how: object) -> FailingStorage:
    return FailingStorage(MemoryFiles(), fail_at, error, **how)  # type: ignore[arg-type]


def test_they_are_what_they_stand_in_for() -> None:
    assert isinstance(failing(1), FileStorage)
    objects = FailingObjects(MemoryObjects(), 1)
    assert isinstance(objects, Storage)
    assert not isinstance(objects, FileStorage)


def test_the_nth_change_fails_once_and_the_same_call_succeeds_then() -> None:
    storage = failing(2)
    storage.put("a", b"1")
    with pytest.raises(StorageFull, match="memory://store/b: injected"):
        storage.put("b", b"2")
    assert storage.stat("b") is None
    storage.put("b", b"2")
    assert (storage.get("a"), storage.get("b"), storage.changes) == (b"1", b"2", 3)


def test_as_many_fail_as_was_said() -> None:
    storage, failed = failing(2, times=3), list[bool]()
    for number in range(6):
        try:
            storage.put(f"{number}", b"")
            failed.append(False)
        except StorageFull:
            failed.append(True)
    assert failed == [False, True, True, True, False, False]


def test_children_count_with_their_parent() -> None:
    storage = failing(3)
    child = storage.child("deep")
    storage.put("a", b"")
    child.put("b", b"")
    with pytest.raises(StorageFull, match="memory://store/deep/c"):
        child.put("c", b"")
    assert (storage.changes, child.uri) == (3, "memory://store/deep")


def test_half_of_a_write_and_of_an_append_is_left() -> None:
    for storage in (failing(1), failing(1)):
        with pytest.raises(StorageFull):
            storage.write("a", [b"12", b"34"])
        assert storage.get("a") == b"12"
    storage = failing(2)
    storage.append("log", b"one\n")
    with pytest.raises(StorageFull):
        storage.append("log", b"two\n")
    assert storage.get("log") == b"one\ntw"


def test_a_lost_answer_is_of_a_change_that_was_made() -> None:
    storage = failing(1, StorageTimeout, lost=True)
    with pytest.raises(StorageTimeout):
        storage.put("a", b"1")
    assert storage.get("a") == b"1"


def test_reads_fail_only_where_they_are_to() -> None:
    storage = failing(2)
    storage.put("a", b"1")
    for _ in range(3):
        storage.get("a"), storage.stat("a"), list(storage.list())
    storage = failing(3, StorageTimeout, reads=True)
    storage.put("a", b"1")
    assert storage.stat("a") is not None
    with pytest.raises(StorageTimeout):
        storage.get("a")
    assert storage.get("a") == b"1"
