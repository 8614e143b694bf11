"""The local storage: folders and files that are renamed once, onto names that must not exist."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from verl_core.errors import ObjectExists, ObjectMissing, StorageError
from verl_core.testing.faulty import killed_at
from verl_core_storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "root"))


def paths(storage: LocalStorage, prefix: str = "") -> list[str]:
    return [stat.path for stat in storage.list(prefix)]


def stage(storage: LocalStorage, content: bytes = b"x") -> None:
    storage.write("tmp/one/data", content)
    storage.write("tmp/one/sub/more", content)


def test_publish_moves_the_whole_folder(storage: LocalStorage) -> None:
    stage(storage)
    storage.publish("tmp/one", "deep/down/two")
    assert paths(storage) == ["deep/down/two/data", "deep/down/two/sub/more"]


@pytest.mark.parametrize("taken", ["folder", "empty folder", "file"])
def test_publish_onto_a_taken_name_changes_nothing(storage: LocalStorage, taken: str) -> None:
    target = Path(storage.uri) / "two"
    if taken == "file":
        storage.put("two", b"theirs")
    else:
        target.mkdir(parents=True)
        if taken == "folder":
            storage.put("two/data", b"theirs")
    stage(storage)
    before = paths(storage)
    with pytest.raises(ObjectExists):
        storage.publish("tmp/one", "two")
    assert paths(storage) == before
    assert taken != "empty folder" or list(target.iterdir()) == []


def test_publishing_what_is_not_staged_is_an_error(storage: LocalStorage) -> None:
    with pytest.raises(ObjectMissing):
        storage.publish("tmp/one", "two")


def test_a_rename_whose_answer_was_lost_counts_as_done(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(storage)
    rename = os.rename

    def lossy(source: str, goal: str) -> None:
        rename(source, goal)
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "rename", lossy)
    storage.publish("tmp/one", "two")
    assert paths(storage) == ["two/data", "two/sub/more"]


def test_a_rename_that_failed_is_an_error_and_leaves_the_staged_folder(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(storage)

    def failing(source: str, goal: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(StorageError, match="input/output error"):
        storage.publish("tmp/one", "two")
    assert paths(storage) == ["tmp/one/data", "tmp/one/sub/more"]


def test_a_publish_killed_anywhere_leaves_the_whole_folder_or_none(storage: LocalStorage) -> None:
    n = 1
    while True:
        stage(storage)
        if not killed_at(n, lambda: storage.publish("tmp/one", "two")):
            break
        assert len(paths(storage, "two")) in (0, 2)
        storage.delete("two")
        n += 1
    assert n > 5
    assert len(paths(storage, "two")) == 2


def test_move_renames_files_and_folders_onto_free_names_only(storage: LocalStorage) -> None:
    storage.put("a", b"1")
    storage.put("f/x", b"2")
    storage.move("a", "new/b")
    storage.move("f", "g")
    assert paths(storage) == ["g/x", "new/b"]
    storage.put("a", b"3")
    with pytest.raises(ObjectExists):
        storage.move("a", "new/b")
    with pytest.raises(ObjectExists):
        storage.move("g", "new")
    with pytest.raises(ObjectMissing):
        storage.move("nothing", "c")
    assert storage.get("new/b") == b"1"
    assert storage.get("a") == b"3"
