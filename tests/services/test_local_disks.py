"""The local storage on a disk that is full or read-only: the right error, nothing half-done, and on it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from verl_core.config import paths as config_paths
from verl_core.errors import StorageFull, StorageReadOnly
from verl_core.types import BuildContext
from verl_core_storage.local import LocalConfig, LocalStorage, build_local
from verl_core_storage.nfs import NfsStorage

from tests.services.mounts import remount, tmpfs


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "disk", 4) as folder:
        yield folder


def test_a_full_disk_takes_nothing_half_and_everything_once_there_is_room(disk: Path) -> None:
    storage = LocalStorage(str(disk / "run"))
    storage.put("a", bytes(1 << 20), if_absent=True)
    for if_absent in (False, True):
        with pytest.raises(StorageFull, match="make room"):
            storage.put("b", (bytes(1 << 20) for _ in range(5)), if_absent=if_absent)
    assert [s.path for s in storage.list()] == ["a"]
    assert storage.free_bytes() > 2 << 20, "what was written of it is gone again"
    storage.put("b", bytes(2 << 20))
    storage.delete("a")
    storage.put("c", bytes(1 << 20))
    assert [s.path for s in storage.list()] == ["b", "c"]


def test_a_disk_that_turns_read_only_is_read_and_said(disk: Path) -> None:
    storage = LocalStorage(str(disk / "run"))
    storage.put("a", b"1")
    storage.write("stage/x", b"2")
    remount(disk, "ro")
    for call in (
        lambda: storage.put("b", b"1"),
        lambda: storage.put("b", b"1", if_absent=True),
        lambda: storage.append("log", b"1"),
        lambda: storage.delete("a"),
        lambda: storage.publish("stage", "done"),
    ):
        with pytest.raises(StorageReadOnly, match="mount it for writing"):
            call()
    assert storage.get("a") == b"1"
    remount(disk, "rw")
    storage.publish("stage", "done")
    assert [s.path for s in storage.list()] == ["a", "done/x"]


def test_a_path_on_a_network_file_system_is_opened_with_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = BuildContext(uri=str(tmp_path / "run"))
    assert isinstance(build_local(LocalConfig(), uri), LocalStorage)
    mounts = [("/", "ext4"), (str(tmp_path), "nfs4")]
    real = config_paths.network_file_system
    monkeypatch.setattr(config_paths, "network_file_system", lambda path: real(path, mounts))
    opened = build_local(LocalConfig(), uri)
    assert isinstance(opened, NfsStorage)
    opened.put("a", b"1")
    assert (tmp_path / "run/a").read_bytes() == b"1"
