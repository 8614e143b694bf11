"""What every storage plugin must do, also when things fail. Subclass in a test module of your own::

from verl_core.testing import StorageSuite

class TestMine(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return MyStorage(...)  # an empty place
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ...errors import ObjectExists, ObjectMissing, StorageError
from ...protocols import FileStorage, Storage
from ...types import Bytes

BAD_PATHS = ("../a", "/a", "a/../b", "", "a//b", ".", "a\0b", "a/")
RACERS = 8


class StoppedError(Exception):
    """Raised by the data that a put is given."""


def paths(storage: Storage, prefix: str = "") -> list[str]:
    return [stat.path for stat in storage.list(prefix)]


class StorageSuite:
    """The contract of ``Storage``. Needs the fixture ``storage``: an empty place."""

    large_size = 40 << 20  # bytes; enough for what the plugin does with large objects (multipart uploads)

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError("give a fixture `storage` that opens an empty place")

    @pytest.fixture
    def other(self, storage: Storage) -> Storage:
        """The same place seen by somebody else. Override it with a client that shares nothing with the first."""
        return storage

    # --- whole objects -----------------------------------------------------------------------

    def test_it_offers_the_whole_protocol(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        assert isinstance(storage.uri, str)
        capabilities = storage.capabilities()
        assert isinstance(storage, FileStorage) or not (capabilities.publish or capabilities.append)

    def test_what_was_put_is_read_back(self, storage: Storage, other: Storage) -> None:
        parts: list[Bytes] = [b"0123", bytearray(b"45"), memoryview(b"6789")]
        assert storage.put("a/b", iter(parts)) == 10
        for reader in (storage, other):
            assert reader.get("a/b") == b"0123456789"
            assert reader.get("a/b", 2, 5) == b"234"
            assert reader.get("a/b", 8) == b"89"
            assert reader.get("a/b", 8, 99) == b"89"
            assert reader.get("a/b", 5, 5) == b""
            assert reader.get("a/b", 10) == b""

    def test_an_empty_object_is_an_object(self, storage: Storage) -> None:
        assert storage.put("SUCCESS", b"", if_absent=True) == 0
        assert storage.get("SUCCESS") == b""
        stat = storage.stat("SUCCESS")
        assert stat is not None
        assert (stat.path, stat.size) == ("SUCCESS", 0)
        assert storage.put("none", iter(())) == 0
        assert paths(storage) == ["SUCCESS", "none"]

    def test_a_put_replaces_and_all_see_it_at_once(self, storage: Storage, other: Storage) -> None:
        storage.put("a", b"first")
        assert other.get("a") == b"first"
        assert [(stat.path, stat.size) for stat in other.list()] == [("a", 5)]
        storage.put("a", b"second!")
        assert other.get("a") == b"second!"
        assert [(stat.path, stat.size) for stat in other.list()] == [("a", 7)]
        stat = other.stat("a")
        assert stat is not None
        assert stat.size == 7
        assert abs(stat.mtime - time.time()) < 3600

    def test_a_large_object_is_whole(self, storage: Storage) -> None:
        block = bytes(range(256)) * 4096  # 1 MiB
        count = -(-self.large_size // len(block))
        assert storage.put("large", (block for _ in range(count)), if_absent=True) == count * len(block)
        with pytest.raises(ObjectExists):
            storage.put("large", (bytes(len(block)) for _ in range(count)), if_absent=True)
        assert storage.get("large") == block * count
        middle = self.large_size // 2 + 7
        assert storage.get("large", middle, middle + 300) == (block * 2)[middle % 256 : middle % 256 + 300]

    # --- names that are taken once -----------------------------------------------------------

    def test_a_create_never_replaces(self, storage: Storage, other: Storage) -> None:
        storage.put("a", b"first", if_absent=True)
        for writer in (storage, other):
            with pytest.raises(ObjectExists) as caught:
                writer.put("a", b"second", if_absent=True)
            assert "a" in caught.value.where
        assert storage.get("a") == b"first"
        storage.delete("a")
        storage.put("a", b"third", if_absent=True)
        assert other.get("a") == b"third"

    def test_of_many_who_create_one_name_exactly_one_wins(self, storage: Storage, other: Storage) -> None:
        def create(number: int) -> bool:
            try:
                (storage, other)[number % 2].put("name", bytes([number]) * 70_000, if_absent=True)
            except ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(create, range(RACERS)))
        assert won.count(True) == 1
        assert storage.get("name") == bytes([won.index(True)]) * 70_000

    def test_a_reader_sees_the_old_object_or_the_new_one_and_nothing_between(
        self, storage: Storage, other: Storage
    ) -> None:
        storage.put("a", b"0" * 200_000)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(lambda: [storage.put("a", str(n).encode() * 200_000) for n in range(1, 8)])
            while not writing.done():
                found = other.get("a")
                assert len(found) == 200_000
                assert len(set(found)) == 1
            writing.result()
        assert other.get("a") == b"7" * 200_000

    def test_a_put_whose_data_fails_leaves_no_trace(self, storage: Storage) -> None:
        def data() -> Iterator[bytes]:
            for _ in range(self.large_size >> 20):
                yield bytes(1 << 20)
            raise StoppedError

        for if_absent in (False, True):
            with pytest.raises(StoppedError):
                storage.put("a", data(), if_absent=if_absent)
            assert storage.stat("a") is None
            assert paths(storage) == []

    # --- listings and deletes ----------------------------------------------------------------

    def test_the_list_is_sorted_by_path_and_complete(self, storage: Storage, other: Storage) -> None:
        names = ["b", "a/z", "a-b/x", "a/.hidden", "a.b", "c/d/e", "a/ü"]
        for name in names:
            storage.put(name, b"12")
        for reader in (storage, other):
            assert paths(reader) == sorted(names)
            assert paths(reader, "a/") == paths(reader, "a") == ["a/.hidden", "a/z", "a/ü"]
            assert paths(reader, "nothing") == paths(reader, "b") == paths(reader, "a/z") == []
            assert {stat.size for stat in reader.list()} == {2}

    def test_a_child_is_the_same_store_further_down(self, storage: Storage) -> None:
        child = storage.child("x").child("y")
        child.put("a/b", b"1")
        assert storage.get("x/y/a/b") == b"1"
        assert paths(child) == ["a/b"]
        assert child.uri == f"{storage.uri}/x/y"
        assert child.capabilities() == storage.capabilities()
        child.delete("a")
        assert paths(storage) == []

    def test_stat_knows_objects_and_not_folders(self, storage: Storage) -> None:
        storage.put("a/b", b"123")
        assert storage.stat("a") is None
        assert storage.stat("a/b/c") is None

    def test_delete_removes_objects_and_folders_and_is_harmless_twice(self, storage: Storage, other: Storage) -> None:
        for name in ("a/b/c", "a/d", "ab", "a-"):
            storage.put(name, b"")
        storage.delete("a/d")
        storage.delete("a")
        storage.delete("a")
        storage.delete("a/b/c")
        assert paths(other) == ["a-", "ab"]
        assert other.stat("a/b/c") is None

    def test_a_missing_object_is_named(self, storage: Storage) -> None:
        for part in ((0, None), (1, 2), (2, 2)):
            with pytest.raises(ObjectMissing) as caught:
                storage.get("a/b", *part)
            assert caught.value.where.endswith("a/b")
        assert storage.stat("a/b") is None

    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_paths_that_leave_the_root_are_refused(self, storage: Storage, path: str) -> None:
        calls: list[Callable[[str], object]] = [storage.get, storage.delete, storage.stat, storage.child]
        calls.append(lambda p: storage.put(p, b""))
        for call in calls:
            with pytest.raises(StorageError):
                call(path)
        assert paths(storage) == []

    def test_calls_of_many_threads_may_overlap(self, storage: Storage) -> None:
        def work(number: int) -> bytes:
            storage.put(f"{number % 4}/{number}", str(number).encode())
            return storage.get(f"{number % 4}/{number}")

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(40))) == [str(n).encode() for n in range(40)]
        assert len(paths(storage)) == 40

    def test_a_forked_child_may_go_on_using_it(self, storage: Storage) -> None:
        storage.put("parent", b"1")
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                storage.put("child", b"2", if_absent=True)
                code = 0 if (storage.get("child"), storage.get("parent")) == (b"2", b"1") else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        storage.put("parent", b"3")
        assert storage.get("parent") == b"3"
