"""The probe says what a bucket really does, once a process, and leaves nothing behind."""

from __future__ import annotations

import time

import pytest
from verl_core.errors import ConfigError, ObjectExists, StorageUnavailable
from verl_core_storage import probe

from tests.services.fixtures import open_s3, prefix
from tests.services.proxy import FaultProxy
from tests.services.rclone import Rclone
from tests.services.seaweed import Seaweed


def place(bucket: str = "runs") -> str:
    return f"s3://{bucket}/{prefix()}"


def test_a_real_s3_server_keeps_its_conditions(s3_env: Seaweed) -> None:
    storage = open_s3(place())
    found = storage.capabilities()
    assert (found.conditional_put, found.consistent_list, found.encryption, found.versioned) == (True, True, "", False)
    assert (found.publish, found.append, found.lock) == (False, False, False)
    assert s3_env.client().list_objects_v2(Bucket="runs", Prefix=storage.uri.rpartition("/")[2]).get("Contents") is None


def test_a_server_that_ignores_conditions_is_found_out(rclone: Rclone) -> None:
    storage = open_s3(place(), **rclone.options())
    found = storage.capabilities()
    assert not found.conditional_put
    assert [p for p in rclone.data.rglob("*") if p.is_file() and ".verl-probe" in str(p)] == []


def test_on_such_a_server_a_create_of_one_committer_looks_first(rclone: Rclone) -> None:
    storage = open_s3(place(), **rclone.options())
    storage.put("a", b"first", if_absent=True)
    with pytest.raises(ObjectExists):
        storage.put("a", b"second", if_absent=True)
    assert storage.get("a") == b"first"
    large = bytes(range(256)) * (80 << 10)  # 20 MiB
    storage.put("b", large, if_absent=True)
    assert storage.get("b") == large


def test_it_runs_once_a_process_for_a_place_and_its_children(s3_proxy: FaultProxy) -> None:
    uri = place()
    first = open_s3(uri)
    first.capabilities()
    s3_proxy.set("blackhole")
    begin = time.monotonic()
    assert open_s3(uri).capabilities() == first.child("rollouts").capabilities() == first.capabilities()
    assert time.monotonic() - begin < 0.5, "nothing was asked of the server"


def test_a_failed_probe_is_made_again(s3_proxy: FaultProxy) -> None:
    storage = open_s3(place(), timeout_s=5)
    s3_proxy.set("refuse")
    with pytest.raises(StorageUnavailable, match="probe"):
        storage.capabilities()
    s3_proxy.set("pass")
    assert storage.capabilities().conditional_put


# --- encryption and versioning ----------------------------------------------------------------


def test_sse_s3_is_used_and_seen(s3_env: Seaweed) -> None:
    storage = open_s3(place(), encryption="AES256", part_mib=5)
    assert storage.capabilities().encryption == "AES256"
    key = storage.uri.removeprefix("s3://runs/")
    storage.put("small", b"1", if_absent=True)
    storage.put("large", bytes(11 << 20), if_absent=True)
    for name in ("small", "large"):
        head = s3_env.client().head_object(Bucket="runs", Key=f"{key}/{name}")
        assert head["ServerSideEncryption"] == "AES256"
    assert storage.get("large") == bytes(11 << 20)


def test_kms_is_asked_for_by_its_key(s3_env: Seaweed) -> None:
    """This server has no keys of its own: that it refuses shows that it was asked."""
    storage = open_s3(place(), encryption="aws:kms", kms_key_id="none", timeout_s=3)
    with pytest.raises(StorageUnavailable, match="InternalError"):
        storage.capabilities()


def test_versioning_is_seen_and_held_against_the_config(s3_env: Seaweed) -> None:
    client = s3_env.client()
    client.create_bucket(Bucket="kept")
    client.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
    found = open_s3(place("kept"), versioning="on").capabilities()
    assert found.versioned
    assert found.conditional_put
    with pytest.raises(ConfigError, match=r"versioning is on, storage\.versioning is off"):
        open_s3(place("kept"), versioning="off").capabilities()
    with pytest.raises(ConfigError, match=r"versioning is off, storage\.versioning is on"):
        open_s3(place(), versioning="on").capabilities()


# --- multipart uploads that nobody finished ---------------------------------------------------


def test_old_uploads_of_the_dead_are_swept_and_young_ones_left(
    s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, storage = s3_env.client(), open_s3(place())
    key = storage.uri.removeprefix("s3://runs/")
    for name in ("x", "y/z"):
        client.create_multipart_upload(Bucket="runs", Key=f"{key}/{name}")

    def left() -> list[str]:
        return sorted(u["Key"] for u in client.list_multipart_uploads(Bucket="runs", Prefix=key).get("Uploads", []))

    storage.capabilities()
    assert left() == [f"{key}/x", f"{key}/y/z"]
    time.sleep(1.1)
    monkeypatch.setattr(probe, "DEAD_AFTER_S", 0.5)
    monkeypatch.setattr(probe, "_known", {})
    storage.capabilities()
    assert left() == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"encryption": "rot13"}, "encryption"),
        ({"versioning": "yes"}, "versioning"),
        ({"timeout_s": 0.0}, "above 0"),
        ({"part_mib": 1}, "part_mib"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_values_that_no_store_can_follow_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        open_s3("s3://runs/a", **options)


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "s3://b/a/../c", "s3://b/a//c"])
def test_places_that_are_none_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="BUCKET"):
        open_s3(uri)
