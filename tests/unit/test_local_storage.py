"""The local storage: whole objects or none, names that are taken once, errors that say which path and why."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from verl_core.errors import (
    ConfigError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
)
from verl_core.protocols import FileStorage
from verl_core.testing.faulty import killed_at
from verl_core.types import BuildContext, Bytes
from verl_core_storage import posix
from verl_core_storage.local import LocalConfig, LocalStorage, build_local


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "root"))


def paths(storage: FileStorage, prefix: str = "") -> list[str]:
    return [stat.path for stat in storage.list(prefix)]


def test_it_is_a_file_storage(storage: LocalStorage) -> None:
    assert isinstance(storage, FileStorage)
    assert storage.capabilities().publish


@pytest.mark.parametrize("uri", ["{}", "file://{}", "file://localhost{}"])
def test_a_path_and_its_file_uri_are_the_same_place(tmp_path: Path, uri: str) -> None:
    opened = build_local(LocalConfig(), BuildContext(uri=uri.format(tmp_path)))
    opened.put("a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize("uri", ["runs/a", "s3://bucket/a", "file://host/a", ""])
def test_anything_else_is_refused_as_a_place(uri: str) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        build_local(LocalConfig(), BuildContext(uri=uri))


def test_opening_makes_nothing(tmp_path: Path) -> None:
    opened = build_local(LocalConfig(), BuildContext(uri=str(tmp_path / "new")))
    assert paths(opened) == []
    assert opened.stat("a") is None
    assert opened.free_bytes() > 0
    assert not (tmp_path / "new").exists()


def test_put_and_get_return_what_was_written(storage: LocalStorage) -> None:
    parts: list[Bytes] = [b"0123", bytearray(b"45"), memoryview(b"6789")]
    assert storage.put("a/b", iter(parts)) == 10
    assert storage.get("a/b") == b"0123456789"
    assert storage.get("a/b", 2, 5) == b"234"
    assert storage.get("a/b", 8) == b"89"
    assert storage.get("a/b", 8, 99) == b"89"
    assert storage.get("a/b", 5, 5) == b""
    storage.put("a/b", b"new")
    assert storage.get("a/b") == b"new"


def test_if_absent_never_replaces(storage: LocalStorage) -> None:
    storage.put("a", b"first", if_absent=True)
    with pytest.raises(ObjectExists):
        storage.put("a", b"second", if_absent=True)
    assert storage.get("a") == b"first"
    assert os.listdir(storage.uri) == ["a"]


def test_of_many_who_create_one_name_exactly_one_wins(storage: LocalStorage) -> None:
    starts = []
    for number in range(4):
        read, write = os.pipe()
        if os.fork() == 0:
            os.read(read, 1)
            try:
                storage.put("name", f"{number}".encode() * 1000, if_absent=True)
            except ObjectExists:
                os._exit(1)
            os._exit(0)
        starts.append(write)
    for write in starts:
        os.write(write, b"g")
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in starts]
    assert sorted(codes) == [0, 1, 1, 1]
    data = storage.get("name")
    assert len(set(data)) == 1
    assert len(data) == 1000


def test_a_put_that_fails_leaves_no_trace(storage: LocalStorage) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageFull, match="make room"):
        storage.put("a", parts())
    assert storage.stat("a") is None
    assert os.listdir(storage.uri) == []


def test_a_put_killed_anywhere_leaves_the_old_object_or_the_new_one(storage: LocalStorage) -> None:
    storage.put("a", b"old")
    n = 1
    while killed_at(n, lambda: storage.put("a", [b"n", b"e", b"w"])):
        assert storage.get("a") in (b"old", b"new")
        assert paths(storage) == ["a"]
        n += 1
    assert n > 3
    assert storage.get("a") == b"new"


def test_an_if_absent_put_killed_anywhere_leaves_nothing_or_the_whole(storage: LocalStorage) -> None:
    n = 1
    while killed_at(n, partial(storage.put, f"a{n}", [b"n", b"e", b"w"], if_absent=True)):
        assert storage.stat(f"a{n}") is None or storage.get(f"a{n}") == b"new"
        n += 1
    assert n > 3


def test_the_list_is_sorted_by_path_and_hides_only_temporary_files(storage: LocalStorage) -> None:
    for path in ("b", "a/z", "a-b/x", "a/.hidden", "a.b", "c/d/e"):
        storage.put(path, b"12")
    (Path(storage.uri) / ".tmp-x").write_bytes(b"")
    found = paths(storage)
    assert found == sorted(["b", "a/z", "a-b/x", "a/.hidden", "a.b", "c/d/e"])
    assert paths(storage, "a/") == paths(storage, "a") == ["a/.hidden", "a/z"]
    assert paths(storage, "nothing") == paths(storage, "b") == []
    assert [stat.path for stat in storage.child("c").list()] == ["d/e"]
    assert next(iter(storage.list("b")), None) is None


def test_stat_knows_objects_and_not_folders(storage: LocalStorage) -> None:
    storage.put("a/b", b"123")
    stat = storage.stat("a/b")
    assert stat is not None
    assert (stat.path, stat.size) == ("a/b", 3)
    assert storage.stat("a") is None
    assert storage.stat("a/b/c") is None


def test_delete_removes_objects_and_folders_and_is_harmless_twice(storage: LocalStorage) -> None:
    storage.put("a/b/c", b"")
    storage.put("a/d", b"")
    storage.delete("a/d")
    storage.delete("a")
    storage.delete("a")
    storage.delete("a/b/c")
    assert paths(storage) == []


@pytest.mark.parametrize("path", ["../a", "/a", "a/../b", "", "a//b", ".", "a\0b"])
def test_paths_that_leave_the_root_are_refused(storage: LocalStorage, path: str) -> None:
    for call in (storage.get, storage.delete, storage.stat, storage.child, lambda p: storage.put(p, b"")):
        with pytest.raises(StorageError, match="not a path below"):
            call(path)
    assert not Path(storage.uri).exists()


# --- append, truncate, lock --------------------------------------------------------------------


def test_append_and_truncate(storage: LocalStorage) -> None:
    storage.append("log/a", b"one\n")
    storage.append("log/a", b"two\n", sync=False)
    assert storage.get("log/a") == b"one\ntwo\n"
    storage.truncate("log/a", 4)
    storage.append("log/a", b"three\n")
    assert storage.get("log/a") == b"one\nthree\n"
    with pytest.raises(ObjectMissing):
        storage.truncate("log/b", 0)


def test_a_lock_is_held_once_and_dies_with_its_process(storage: LocalStorage) -> None:
    gate, open_gate = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        storage.lock("LOCK")
        if os.fork() == 0:  # a child of the holder must not hold on to the lock
            os.write(tell, b"r")
            os.read(gate, 1)
            os._exit(0)
        os.read(ready, 1)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    assert storage.lock("LOCK") is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    release = storage.lock("LOCK")
    os.write(open_gate, b"g")
    assert release is not None
    assert storage.lock("LOCK") is None
    release()
    release()
    again = storage.lock("LOCK")
    assert again is not None
    again()


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageDenied),
        (errno.EPERM, StorageDenied),
        (errno.ENOENT, ObjectMissing),
        (errno.EEXIST, ObjectExists),
        (errno.ENOTEMPTY, ObjectExists),
        (errno.EIO, StorageError),
    ],
)
def test_system_errors_become_errors_of_the_tree(number: int, kind: type[StorageError]) -> None:
    with pytest.raises(StorageError, match="/place") as caught, posix.mapped("/place"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind


def test_a_missing_object_is_named(storage: LocalStorage) -> None:
    with pytest.raises(ObjectMissing, match="root/a/b"):
        storage.get("a/b")


def test_a_folder_is_not_an_object(storage: LocalStorage) -> None:
    storage.put("a/b", b"")
    with pytest.raises(StorageError, match="directory"):
        storage.get("a")
