"""What every storage that is a file system must do beside the contract of ``Storage``."""

from __future__ import annotations

import pytest

from ...errors import ObjectExists, ObjectMissing
from ...protocols import FileStorage, Storage
from .storage import StorageSuite, paths


class FileStorageSuite(StorageSuite):
    """The contract of ``FileStorage``, beside that of ``Storage``."""

    @pytest.fixture
    def files(self, storage: Storage) -> FileStorage:
        assert isinstance(storage, FileStorage)
        return storage

    def test_a_folder_is_published_whole_onto_a_free_name(self, files: FileStorage) -> None:
        files.write("stage/one/a", b"1")
        files.write("stage/one/b/c", b"2")
        files.publish("stage/one", "done/one")
        assert paths(files, "done") == ["done/one/a", "done/one/b/c"]
        assert paths(files, "stage") == []
        files.write("stage/two/a", b"3")
        with pytest.raises(ObjectExists):
            files.publish("stage/two", "done/one")
        assert files.get("stage/two/a") == b"3"
        assert files.get("done/one/a") == b"1"

    def test_a_move_never_replaces(self, files: FileStorage) -> None:
        files.put("a", b"1")
        files.put("b", b"2")
        with pytest.raises(ObjectExists):
            files.move("a", "b")
        files.move("a", "c/d")
        assert paths(files) == ["b", "c/d"]
        with pytest.raises(ObjectMissing):
            files.move("a", "e")

    def test_append_and_truncate(self, files: FileStorage) -> None:
        files.append("log/a", b"one\n")
        files.append("log/a", b"two\n", sync=False)
        assert files.get("log/a") == b"one\ntwo\n"
        files.truncate("log/a", 4)
        files.append("log/a", b"three\n")
        assert files.get("log/a") == b"one\nthree\n"
        with pytest.raises(ObjectMissing):
            files.truncate("log/b", 0)

    def test_a_lock_is_held_once(self, files: FileStorage) -> None:
        release = files.lock("LOCK")
        assert release is not None
        assert files.lock("LOCK") is None
        release()
        release()
        again = files.lock("LOCK")
        assert again is not None
        again()

    def test_free_room_is_known_before_the_first_write(self, files: FileStorage) -> None:
        below = files.child("not/yet")
        assert isinstance(below, FileStorage)
        assert below.free_bytes() > 0
