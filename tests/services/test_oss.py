"""OSS, against a fixture that checks what the real service checks: signatures, hashes, clocks, conditions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from verl_core.errors import (
    ConfigError,
    ObjectExists,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageThrottled,
    StorageUnavailable,
    StoreMissing,
)
from verl_core.protocols import Storage
from verl_core.testing import HungStorageSuite
from verl_core.types import BuildContext
from verl_core_storage import slots
from verl_core_storage.object_store import ObjectStorage
from verl_core_storage.oss import OssConfig, build_oss

from tests.services.fixtures import open_oss, prefix
from tests.services.oss_server import ACCESS, SECRET, OssServer
from tests.services.proxy import FaultProxy


def place(bucket: str = "runs") -> str:
    return f"oss://{bucket}/{prefix()}"


def failed(call: Callable[[], object], kind: type[StorageError], within_s: float = 5.0) -> StorageError:
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - begin < within_s
    assert SECRET not in str(caught.value)
    assert ACCESS not in str(caught.value)
    assert caught.value.where.startswith("oss://")
    return caught.value


class TestHungServer(HungStorageSuite):
    @pytest.fixture
    def hung_storage(self, oss_server: OssServer) -> Iterator[Storage]:
        storage = open_oss(place(), oss_server, timeout_s=1.5, min_mib_per_s=20.0)
        storage.put("there", b"1")
        storage.capabilities()
        oss_server.hung = True
        yield storage
        oss_server.hung = False


def test_the_probe_finds_conditions_that_hold_and_leaves_nothing(oss_server: OssServer) -> None:
    found = open_oss(place(), oss_server).capabilities()
    assert (found.conditional_put, found.consistent_list, found.encryption, found.versioned) == (True, True, "", False)
    assert oss_server.buckets["runs"].objects == {}
    assert oss_server.buckets["runs"].uploads == {}


def test_a_versioned_bucket_ignores_conditions_and_is_found_out(oss_server: OssServer) -> None:
    oss_server.buckets["runs"].versioned = True
    storage = open_oss(place(), oss_server)
    found = storage.capabilities()
    assert found.versioned
    assert not found.conditional_put
    storage.put("a", b"1", if_absent=True)
    with pytest.raises(ObjectExists):
        storage.put("a", b"2", if_absent=True)


def test_encryption_is_used_and_its_absence_found_out(oss_server: OssServer) -> None:
    for name in ("AES256", "aws:kms"):
        storage = open_oss(place(), oss_server, encryption=name)
        assert storage.capabilities().encryption == name
    oss_server.buckets["runs"].encrypts = False
    with pytest.raises(ConfigError, match="encryption none, not AES256"):
        open_oss(place(), oss_server, encryption="AES256").capabilities()


@pytest.mark.parametrize(
    ("answer", "kind", "remedy"),
    [
        ((403, "AccessDenied"), StorageDenied, "rights"),
        ((403, "UserDisable"), StorageDenied, "account"),
        ((507, "InsufficientStorage"), StorageFull, "room"),
        ((405, "MethodNotAllowed"), StorageReadOnly, "written"),
        ((503, "QpsLimitExceeded"), StorageThrottled, "max_concurrent_uploads"),
        ((429, "TooManyRequests"), StorageThrottled, "max_concurrent_uploads"),
        ((500, "InternalError"), StorageUnavailable, "server"),
        ((502, ""), StorageUnavailable, "server"),
    ],
)
def test_each_refusal_has_its_own_error(
    oss_server: OssServer, answer: tuple[int, str], kind: type[StorageError], remedy: str
) -> None:
    storage = open_oss(place(), oss_server, attempts=2)
    storage.put("a", b"1", if_absent=True)
    oss_server.writes_fail = answer
    for call in (
        lambda: storage.put("b", b"2"),
        lambda: storage.put("c", b"2", if_absent=True),
        lambda: storage.put("d", bytes(20 << 20)),
        lambda: storage.delete("a"),
    ):
        error = failed(call, kind)
        assert type(error) is kind
        assert remedy in error.remedy
    assert storage.get("a") == b"1"
    oss_server.writes_fail = None
    assert [s.path for s in storage.list()] == ["a"]


def test_a_server_that_fails_now_and_then_is_asked_again(oss_server: OssServer) -> None:
    storage = open_oss(place(), oss_server)
    storage.capabilities()
    oss_server.fail = (503, "ServiceUnavailable")
    threading.Timer(0.3, lambda: setattr(oss_server, "fail", None)).start()
    storage.put("a", b"1", if_absent=True)
    assert storage.get("a") == b"1"


def test_wrong_keys_a_missing_bucket_and_a_wrong_clock_are_said(oss_server: OssServer) -> None:
    def get(**options: object) -> Callable[[], object]:
        return lambda: open_oss(str(options.pop("uri", place())), oss_server, **options).get("a")

    assert "secret" in failed(get(secret_access_key="wrong"), StorageDenied).remedy
    assert "access key" in failed(get(access_key_id="nobody"), StorageDenied).remedy
    assert "make the bucket" in failed(get(uri=place("none")), StoreMissing).remedy
    oss_server.clock_s = 3600
    assert "clock" in failed(get(), StorageDenied).remedy


def test_a_create_whose_answer_was_lost_is_a_success_and_another_s_name_is_not(oss_server: OssServer) -> None:
    proxy = FaultProxy(int(oss_server.endpoint.rpartition(":")[2]))
    try:
        storage = open_oss(place(), oss_server, endpoint_url=proxy.url)
        storage.capabilities()
        proxy.set("drop_reply", times=1)
        storage.put("a", b"mine", if_absent=True)
        assert proxy.strikes == 1
        proxy.set("drop_reply", times=1)
        with pytest.raises(ObjectExists):
            storage.put("a", b"mine", if_absent=True)
        assert proxy.strikes == 1
        for mode in ("reset", "truncate", "refuse"):
            proxy.set(mode, times=2)
            assert storage.get("a") == b"mine"
    finally:
        proxy.close()


def test_no_more_uploads_than_slots_are_under_way(
    oss_server: OssServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "node_folder", lambda: str(tmp_path / "slots"))
    one, other = (open_oss(place(), oss_server, max_concurrent_uploads=3, part_mib=5) for _ in range(2))
    for storage in (one, other):
        storage.capabilities()
    oss_server.hold_s, oss_server.most_uploading = 0.1, 0

    def upload(number: int) -> None:
        storage: ObjectStorage = (one, other)[number % 2]
        storage.put(f"{number}", bytes((11 << 20) if number < 2 else 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(upload, range(12)))
    assert oss_server.most_uploading == 3


def test_credentials_come_from_the_environment(oss_server: OssServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSS_ENDPOINT", "OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OSS_ACCESS_KEY_ID"):
        build_oss(OssConfig(), BuildContext(uri=place()))
    monkeypatch.setenv("OSS_ENDPOINT", oss_server.endpoint)
    monkeypatch.setenv("OSS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", SECRET)
    storage = build_oss(OssConfig(), BuildContext(uri=place()))
    storage.put("a", b"1")
    assert storage.get("a") == b"1"
