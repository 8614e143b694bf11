"""A mount that hangs, slows down, fills up, goes stale or read-only: the right error, in time, nothing half-done."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from verl_core.errors import (
    ObjectExists,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTimeout,
    StorageUnavailable,
)
from verl_core.protocols import Storage
from verl_core.testing import FileStorageSuite, HungStorageSuite
from verl_core.types import BuildContext
from verl_core_storage.nfs import NfsConfig, NfsStorage, build_nfs

from tests.services.faulty_mount import FaultyMount


def opened(mount: FaultyMount, on_wait: Callable[[StorageError], None] | None = None, **keys: object) -> NfsStorage:
    config = NfsConfig(**keys)  # type: ignore[arg-type]
    return build_nfs(config, BuildContext(uri=f"nfs://{mount.path}/run", on_wait=on_wait))


class TestWorkingMount(FileStorageSuite):
    large_size = 4 << 20

    @pytest.fixture
    def storage(self, faulty_mount: FaultyMount) -> Storage:
        return opened(faulty_mount)

    @pytest.fixture
    def other(self, storage: Storage, faulty_mount: FaultyMount) -> Storage:
        return opened(faulty_mount)


class TestHungMount(HungStorageSuite):
    @pytest.fixture
    def hung_storage(self, faulty_mount: FaultyMount) -> Storage:
        storage = opened(faulty_mount, timeout_s=1.0, min_mib_per_s=20.0)
        storage.put("there", b"1")
        faulty_mount.set("hung")
        return storage


def test_a_stuck_mount_is_told_of_within_three_seconds_and_the_call_goes_on(faulty_mount: FaultyMount) -> None:
    told: list[tuple[float, StorageError]] = []
    storage = opened(faulty_mount, on_wait=lambda error: told.append((time.monotonic(), error)))
    storage.put("a", b"1")
    faulty_mount.set("hung")
    begin = time.monotonic()
    threading.Timer(4, faulty_mount.set, ["ok"]).start()
    assert storage.get("a") == b"1"
    assert time.monotonic() - begin >= 4
    assert len(told) == 1
    assert 2.9 < told[0][0] - begin < 3.5
    assert told[0][1].where == f"{storage.uri}/a"
    assert "mount" in told[0][1].remedy


def test_calls_that_were_given_up_have_no_effect_when_the_mount_wakes_up(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount, timeout_s=0.5)
    storage.put("a", b"old")
    storage.write("stage/x", b"1")
    faulty_mount.set("hung")
    for call in (
        lambda: storage.put("a", b"late"),
        lambda: storage.put("b", b"late", if_absent=True),
        lambda: storage.append("log", b"late\n"),
        lambda: storage.delete("a"),
        lambda: storage.publish("stage", "done"),
    ):
        with pytest.raises(StorageTimeout):
            call()
    faulty_mount.set("ok")
    end = time.monotonic() + 10
    while any(t.name.startswith("verl-") for t in threading.enumerate() if t.daemon and "writes" not in t.name):
        assert time.monotonic() < end, "threads that were left behind end when the mount answers"
        time.sleep(0.05)
    assert storage.get("a") == b"old"
    assert [s.path for s in storage.list() if s.path != "log"] == ["a", "stage/x"]
    log = storage.stat("log")
    assert log is None or log.size == 0


def test_a_hung_mount_does_not_eat_up_the_process(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount, timeout_s=0.2, max_stuck_calls=3)
    storage.put("a", b"1")
    faulty_mount.set("hung")
    before = threading.active_count()
    for _ in range(8):
        with pytest.raises(StorageTimeout) as caught:
            storage.get("a")
    assert "3 calls have not returned" in caught.value.what
    assert threading.active_count() <= before + 3
    faulty_mount.set("ok")
    end = time.monotonic() + 10
    while True:
        try:
            assert storage.get("a") == b"1"
            break
        except StorageTimeout:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_a_slow_mount_is_waited_for(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount, timeout_s=20.0)
    faulty_mount.set("slow")
    storage.put("a", b"1", if_absent=True)
    assert storage.get("a") == b"1"


@pytest.mark.parametrize(
    ("mode", "kind", "remedy"),
    [
        ("full", StorageFull, "make room"),
        ("read_only", StorageReadOnly, "mount it for writing"),
        ("stale", StorageUnavailable, "mount it anew"),
        ("io_error", StorageError, ""),
    ],
)
def test_each_trouble_has_its_own_error_and_passes(
    faulty_mount: FaultyMount, mode: str, kind: type[StorageError], remedy: str
) -> None:
    storage = opened(faulty_mount, timeout_s=5.0)
    storage.put("a", b"1")
    storage.write("stage/x", b"2")
    faulty_mount.set(mode)
    for call in (
        lambda: storage.put("b", b"12345"),
        lambda: storage.put("c", b"12345", if_absent=True),
        lambda: storage.append("log", b"x"),
        lambda: storage.publish("stage", "done"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert remedy in caught.value.remedy
        assert str(faulty_mount.path) in caught.value.where
    if mode in ("full", "read_only"):
        assert storage.get("a") == b"1"
    faulty_mount.set("ok")
    assert [s.path for s in storage.list() if s.size] == ["a", "stage/x"]
    storage.put("b", b"12345")
    storage.publish("stage", "done")
    assert storage.get("done/x") == b"2"


def test_a_server_of_the_mount_that_died_is_said(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount, timeout_s=5.0)
    storage.put("a", b"1")
    faulty_mount.server.kill()
    with pytest.raises(StorageUnavailable, match="mount it anew"):
        storage.get("a")


def test_a_link_or_rename_whose_answer_was_lost_is_a_success(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount)
    storage.write("stage/x", b"1")
    storage.stat("a")
    faulty_mount.set("lost_link")
    assert storage.put("a", b"mine", if_absent=True) == 4
    with pytest.raises(ObjectExists):
        storage.put("a", b"other", if_absent=True)
    faulty_mount.set("lost_rename")
    storage.publish("stage", "done")
    assert storage.get("done/x") == b"1"
    assert storage.get("a") == b"mine"


def test_it_offers_neither_locks_nor_appends_as_a_fence(faulty_mount: FaultyMount) -> None:
    can = opened(faulty_mount).capabilities()
    assert (can.publish, can.conditional_put, can.lock, can.append) == (True, True, False, False)


def test_what_another_client_made_or_removed_is_seen_at_once(faulty_mount: FaultyMount) -> None:
    storage = opened(faulty_mount)
    assert storage.stat("x/y") is None
    os.makedirs(faulty_mount.back / "run/x")
    (faulty_mount.back / "run/x/y").write_bytes(b"made elsewhere")
    stat = storage.stat("x/y")
    assert stat is not None
    assert stat.size == 14
    assert storage.get("x/y") == b"made elsewhere"
    (faulty_mount.back / "run/x/y").unlink()
    assert storage.stat("x/y") is None
