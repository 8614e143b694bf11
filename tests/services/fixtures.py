"""Fixtures of the servers: each is started on the first test of a session that asks for it, and killed at its end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from verl_core.errors import StorageError
from verl_core.types import BuildContext

from .faulty_mount import FaultyMount
from .oss_server import OssServer
from .proxy import FaultProxy
from .rclone import Rclone
from .seaweed import SECRET, Seaweed

if TYPE_CHECKING:  # the clients are imported by those who open a store: they cost a second
    from verl_core_storage.object_store import ObjectStorage

_numbers = itertools.count()
OpenS3 = Callable[..., "ObjectStorage"]


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server with the bucket ``runs``. Tests use prefixes of their own, and leave it running."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    try:
        server.start()
        server.make_bucket("runs")
        yield server
    finally:
        server.kill()


@pytest.fixture
def s3_env(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The server, and ``AWS_*`` variables that lead to it."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in seaweed.environ().items():
        monkeypatch.setenv(name, value)
    return seaweed


def prefix() -> str:
    """A prefix that no other test uses."""
    return f"t{os.getpid()}-{next(_numbers)}"


def open_s3(uri: str, **options: object) -> ObjectStorage:
    """A client of its own, with short times unless ``options`` say otherwise."""
    from verl_core_storage.s3 import S3Config, build_s3

    given: dict[str, object] = {"timeout_s": 20.0, **options}
    waiting = given.pop("on_wait", None)
    uploads = given.pop("max_concurrent_uploads", 4)
    return build_s3(S3Config(**given), BuildContext(uri=uri, on_wait=waiting, max_concurrent_uploads=uploads))  # type: ignore[arg-type]


@pytest.fixture
def s3_proxy(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the S3 server; clients that are opened now go through it."""
    proxy = FaultProxy(s3_env.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rclone]:
    """An S3 server that ignores conditions, with the bucket ``runs``."""
    server = Rclone(tmp_path_factory.mktemp("rclone"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def faulty_mount(tmp_path: Path) -> Iterator[FaultyMount]:
    """A mount of its own for a test, working until it is told otherwise."""
    mount = FaultyMount(tmp_path / "faulty")
    try:
        mount.start()
        yield mount
    finally:
        mount.close()


@pytest.fixture
def oss_server() -> Iterator[OssServer]:
    """A fixture that speaks OSS (see ``oss_server``), with the bucket ``runs``; one for each test."""
    server = OssServer()
    try:
        yield server
    finally:
        server.close()


def open_oss(uri: str, server: OssServer, **options: object) -> ObjectStorage:
    """A client of its own, with short times unless ``options`` say otherwise."""
    from verl_core_storage.oss import OssConfig, build_oss

    given: dict[str, object] = {"timeout_s": 20.0, **server.options(), **options}
    uploads = given.pop("max_concurrent_uploads", 4)
    return build_oss(OssConfig(**given), BuildContext(uri=uri, max_concurrent_uploads=uploads))  # type: ignore[arg-type]


def open_cos(uri: str, **options: object) -> ObjectStorage:
    """The COS plugin before a real S3 server, which has no virtual hosts."""
    from verl_core_storage.cos import CosConfig, build_cos

    given: dict[str, object] = {"timeout_s": 20.0, "addressing_style": "path", **options}
    return build_cos(CosConfig(**given), BuildContext(uri=uri))  # type: ignore[arg-type]


def place(bucket: str = "runs") -> str:
    """A URI that no other test uses."""
    return f"s3://{bucket}/{prefix()}"


def failed(call: Callable[[], object], kind: type[StorageError], within_s: float) -> StorageError:
    """The error that a call of an S3 storage must end with, in time and without a secret in it."""
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - begin < within_s
    assert SECRET not in str(caught.value)
    assert caught.value.where.startswith("s3://")
    return caught.value
