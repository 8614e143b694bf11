"""S3 that refuses: wrong keys, no rights, no bucket, a wrong clock. Said at once, with what to do, without a secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from botocore import auth
from verl_core.errors import StorageDenied, StorageError, StoreMissing
from verl_core_storage.object_store import ObjectStorage

from tests.services.fixtures import failed, open_s3, place, prefix
from tests.services.seaweed import ACCESS, READER_ACCESS, READER_SECRET, SECRET, Seaweed


@pytest.mark.parametrize("call", ["put", "create", "get", "list", "stat", "delete"])
@pytest.mark.parametrize(
    ("keys", "kind", "remedy"),
    [
        ({"secret_access_key": "wrong-secret"}, StorageDenied, "secret"),
        ({"access_key_id": "nobody"}, StorageDenied, "access key"),
        ({"bucket": "no-such-bucket"}, StoreMissing, "make the bucket"),
    ],
)
def test_wrong_keys_and_a_missing_bucket_are_said_at_once(
    s3_env: Seaweed, keys: dict[str, str], kind: type[StorageError], remedy: str, call: str
) -> None:
    options = {"access_key_id": ACCESS, "secret_access_key": SECRET, **keys}
    storage = open_s3(f"s3://{options.pop('bucket', 'runs')}/{prefix()}", **options)
    error = failed(lambda: calls_of(storage)[call](), kind, 5)
    assert remedy in error.remedy
    assert "wrong-secret" not in str(error)


def calls_of(storage: ObjectStorage) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: storage.put("a", b"1"),
        "create": lambda: storage.put("a", b"1", if_absent=True),
        "get": lambda: storage.get("a"),
        "list": lambda: list(storage.list()),
        "stat": lambda: storage.stat("a"),
        "delete": lambda: storage.delete("a"),
    }


def test_a_user_who_may_only_read_reads_and_is_refused_the_rest(s3_env: Seaweed) -> None:
    uri = place()
    open_s3(uri).put("a", b"1")
    reader = open_s3(uri, access_key_id=READER_ACCESS, secret_access_key=READER_SECRET)
    assert reader.get("a") == b"1"
    assert [s.path for s in reader.list()] == ["a"]
    for call in ("put", "create", "delete"):
        assert "rights" in failed(calls_of(reader)[call], StorageDenied, 5).remedy
    assert failed(reader.capabilities, StorageDenied, 5).what.startswith("probe")


def test_no_credentials_at_all_are_said(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    storage = open_s3(place())
    assert "AWS_ACCESS_KEY_ID" in failed(lambda: storage.get("a"), StorageDenied, 5).remedy


def test_a_profile_is_enough(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f"[runs]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "credentials").write_text(text)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    storage = open_s3(place(), profile="runs")
    storage.put("a", b"1")
    assert storage.get("a") == b"1"


def test_a_clock_that_is_wrong_is_named(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    real = auth.get_current_datetime
    monkeypatch.setattr(auth, "get_current_datetime", lambda *a, **k: real(*a, **k).replace(year=2001))
    storage = open_s3(place())
    assert "clock" in failed(lambda: storage.get("a"), StorageDenied, 5).remedy
