"""S3 when the server or the way to it fails: the right error within the deadline, or success once it is over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from verl_core.errors import (
    ObjectExists,
    StorageError,
    StorageTimeout,
    StorageUnavailable,
)
from verl_core.protocols import Storage
from verl_core.testing import HungStorageSuite
from verl_core_storage.object_store import ObjectStorage

from tests.services.fixtures import failed, open_s3, place
from tests.services.mounts import tmpfs
from tests.services.proxy import FaultProxy
from tests.services.seaweed import ACCESS, SECRET, Seaweed


def silent_soon() -> ObjectStorage:
    """A storage of short patience that is connected already, with an object."""
    uri = place()
    open_s3(uri).put("there", b"1", if_absent=True)
    storage = open_s3(uri, timeout_s=1.5)
    for _ in range(20):  # a busy machine may need more than its patience
        with suppress(StorageTimeout):
            storage.get("there")
            return storage
    raise AssertionError("the server is too slow for this test")


# --- no answer --------------------------------------------------------------------------------


class TestFrozenServer(HungStorageSuite):
    """SIGSTOP: the kernel still takes connections and bytes, nobody answers."""

    @pytest.fixture
    def hung_storage(self, s3_env: Seaweed) -> Iterator[Storage]:
        storage = silent_soon()
        s3_env.freeze()
        try:
            yield storage
        finally:
            s3_env.wake()


class TestBlackhole(HungStorageSuite):
    @pytest.fixture
    def hung_storage(self, s3_proxy: FaultProxy) -> Storage:
        storage = silent_soon()
        s3_proxy.set("blackhole")
        return storage


def test_the_probe_of_a_frozen_server_ends_in_a_timeout(s3_proxy: FaultProxy) -> None:
    s3_proxy.set("blackhole")
    error = failed(open_s3(place(), timeout_s=1.5).capabilities, StorageTimeout, 6)
    assert "probe" in error.what
    assert "reachable" in error.remedy


def test_a_store_that_does_not_answer_is_told_of_within_three_seconds_and_the_call_goes_on(
    s3_proxy: FaultProxy,
) -> None:
    told: list[tuple[float, StorageError]] = []
    storage = open_s3(place(), timeout_s=24, on_wait=lambda e: told.append((time.monotonic(), e)))
    storage.put("a", b"1")
    s3_proxy.set("blackhole", times=1)
    begin = time.monotonic()
    assert storage.get("a") == b"1"
    assert 8 <= time.monotonic() - begin < 12, "one attempt of 8 s was lost"
    assert len(told) == 1
    assert 2.9 < told[0][0] - begin < 3.5
    assert "no answer for 3 s" in told[0][1].what


def test_an_answer_that_trickles_is_cut_off_at_the_deadline(s3_proxy: FaultProxy) -> None:
    storage = open_s3(place(), timeout_s=2)
    storage.put("a", bytes(1000))
    s3_proxy.set("trickle", seconds=0.1)
    failed(lambda: storage.get("a"), StorageTimeout, 6)


# --- lost and broken answers ------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_a_success(s3_proxy: FaultProxy) -> None:
    storage = open_s3(place())
    storage.capabilities()
    s3_proxy.set("drop_reply", times=1)
    assert storage.put("a", b"mine", if_absent=True) == 4
    assert s3_proxy.strikes == 1
    assert storage.get("a") == b"mine"


def test_a_create_whose_answer_was_lost_does_not_take_the_name_of_another(s3_proxy: FaultProxy) -> None:
    """The name is another's, and the refusal of the first attempt is lost."""
    storage = open_s3(place())
    storage.put("a", b"hers", if_absent=True)
    s3_proxy.set("drop_reply", times=1)
    with pytest.raises(ObjectExists):
        storage.put("a", b"mine", if_absent=True)
    assert s3_proxy.strikes == 1
    assert storage.get("a") == b"hers"


def test_a_multipart_create_whose_last_answer_was_lost_is_a_success(
    s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_s3(place(), part_mib=5)
    storage.capabilities()
    client = storage._client
    finish = client.finish_upload

    async def lossy(*args: object, **kwargs: object) -> None:
        monkeypatch.setattr(client, "finish_upload", finish)
        s3_proxy.set("drop_reply", times=1)
        await finish(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "finish_upload", lossy)
    data = bytes(range(256)) * (44 << 10)  # 11 MiB
    assert storage.put("a", data, if_absent=True) == len(data)
    assert s3_proxy.strikes == 1
    assert storage.get("a") == data


@pytest.mark.parametrize("mode", ["reset", "refuse", "truncate", "drop_reply"])
def test_what_passes_by_itself_is_tried_again(s3_proxy: FaultProxy, mode: str) -> None:
    storage = open_s3(place(), part_mib=5)
    data = bytes(range(256)) * (48 << 10)  # 12 MiB
    storage.put("a", data)
    for call in (
        lambda: storage.put("b", data),
        lambda: storage.get("a"),
        lambda: list(storage.list()),
        lambda: storage.stat("a"),
        lambda: storage.delete("b"),
    ):
        s3_proxy.set(mode, after=300 if mode == "truncate" else 1000, times=2)  # type: ignore[arg-type]
        call()
    assert storage.get("a") == data
    assert [s.path for s in storage.list()] == ["a"]


def test_a_server_that_is_gone_ends_in_unavailable(s3_proxy: FaultProxy) -> None:
    storage = open_s3(place(), timeout_s=5)
    storage.put("a", b"1")
    s3_proxy.set("refuse")
    error = failed(lambda: storage.get("a"), StorageUnavailable, 5)
    assert error.where.endswith("/a")
    assert "get" in error.what
    assert "reachable" in error.remedy


@pytest.mark.slow
def test_a_server_killed_in_mid_upload_leaves_nothing_and_takes_the_upload_when_it_is_back(tmp_path: Path) -> None:
    server = Seaweed(tmp_path / "own")
    server.start()
    try:
        server.make_bucket("runs")
        keys = {"endpoint_url": server.endpoint, "access_key_id": ACCESS, "secret_access_key": SECRET}
        storage = open_s3("s3://runs/mid", timeout_s=8, part_mib=5, region="us-east-1", **keys)
        storage.put("before", b"1", if_absent=True)

        def data() -> Iterator[bytes]:
            for number in range(40):
                if number == 21:
                    server.kill()
                yield bytes([number]) * (1 << 20)

        failed(lambda: storage.put("a", data(), if_absent=True), StorageUnavailable, 12)
        server.start()
        assert [s.path for s in storage.list()] == ["before"]
        whole = b"".join(bytes([number]) * (1 << 20) for number in range(40))
        assert storage.put("a", whole, if_absent=True) == 40 << 20
        assert storage.get("a") == whole
        assert len(server.client().list_multipart_uploads(Bucket="runs").get("Uploads", [])) == 1
        storage.delete("a")
        assert "Uploads" not in server.client().list_multipart_uploads(Bucket="runs"), "swept with the object"
    finally:
        server.kill()


# --- no room -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_server_is_said_with_what_to_look_at_and_nothing_half_is_seen(tmp_path: Path) -> None:
    """This server answers a full disk with an internal error, so that is what can be said of it."""
    with tmpfs(tmp_path / "own" / "data", 64):
        server = Seaweed(tmp_path / "own", volume_mb=16)
        server.start()
        try:
            server.make_bucket("runs")
            keys = {"endpoint_url": server.endpoint, "access_key_id": ACCESS, "secret_access_key": SECRET}
            storage = open_s3("s3://runs/full", timeout_s=8, attempts=2, region="us-east-1", **keys)
            storage.put("before", b"1", if_absent=True)
            whole = ["before"]

            def fill() -> None:
                for number in range(20):
                    storage.put(f"f{number:02}", bytes([number]) * (12 << 20))
                    whole.append(f"f{number:02}")

            error = failed(fill, StorageUnavailable, 40)
            assert "room" in error.remedy
            assert [s.path for s in storage.list()] == whole
            assert storage.get(whole[-1]) == bytes([len(whole) - 2]) * (12 << 20)
        finally:
            server.kill()
