"""COS through its S3 endpoint, here before a real S3 server: what is particular to it."""

from __future__ import annotations

import pytest
from verl_core.errors import ConfigError, ObjectExists
from verl_core.types import BuildContext
from verl_core_storage.cos import CosConfig, build_cos

from tests.services.fixtures import open_cos, prefix
from tests.services.proxy import FaultProxy
from tests.services.seaweed import ACCESS, SECRET, Seaweed


def test_creates_and_only_creates_carry_both_conditions_signed(s3_proxy: FaultProxy) -> None:
    storage = open_cos(f"cos://runs/{prefix()}", endpoint_url=s3_proxy.url, part_mib=5)
    storage.capabilities()
    s3_proxy.heads.clear()
    storage.put("a", b"1", if_absent=True)
    storage.put("b", b"1")
    storage.put("c", bytes(6 << 20), if_absent=True)
    heads = [h for h in s3_proxy.heads if h.startswith((b"PUT", b"POST"))]
    conditional = [h for h in heads if b"x-cos-forbid-overwrite: true" in h.lower()]
    assert all(b"if-none-match: *" in h.lower() for h in conditional)
    assert all(b"x-cos-forbid-overwrite" in h.partition(b"SignedHeaders=")[2].split(b",")[0] for h in conditional)
    assert [h.split(b" ")[0] for h in conditional] == [b"PUT", b"POST"], "the small create, and the large one's end"


def test_conditions_hold(s3_env: Seaweed) -> None:
    storage = open_cos(f"cos://runs/{prefix()}", endpoint_url=s3_env.endpoint)
    storage.put("a", b"1", if_absent=True)
    with pytest.raises(ObjectExists):
        storage.put("a", b"2", if_absent=True)


def test_its_own_credentials_and_region_are_taken(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="region"):
        build_cos(CosConfig(), BuildContext(uri="cos://runs-1250000000/a"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("COS_SECRET_ID", ACCESS)
    monkeypatch.setenv("COS_SECRET_KEY", SECRET)
    storage = open_cos(f"cos://runs/{prefix()}", endpoint_url=s3_env.endpoint)
    storage.put("a", b"1")
    assert storage.get("a") == b"1"
    assert build_cos(CosConfig(region="ap-guangzhou"), BuildContext(uri="cos://runs-1250000000/a")).uri.endswith("/a")
