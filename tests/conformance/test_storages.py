"""Every storage against the suite that ships with the core."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_core.protocols import Storage
from verl_core.testing import FileStorageSuite, StorageSuite
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.types import BuildContext
from verl_core_storage.local import LocalStorage
from verl_core_storage.nfs import NfsConfig, build_nfs

from tests.services.fixtures import open_cos, open_oss, open_s3, prefix
from tests.services.oss_server import OssServer
from tests.services.seaweed import Seaweed


class TestMemoryObjects(StorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryObjects()


class TestMemoryFiles(FileStorageSuite):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryFiles()


class TestLocal(FileStorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path / "root"))

    @pytest.fixture
    def other(self, storage: Storage) -> Storage:
        return LocalStorage(storage.uri)


class TestS3(StorageSuite):
    @pytest.fixture
    def storage(self, s3_env: Seaweed) -> Storage:
        return open_s3(f"s3://runs/{prefix()}")

    @pytest.fixture
    def other(self, storage: Storage) -> Storage:
        return open_s3(storage.uri)


class TestOss(StorageSuite):
    @pytest.fixture
    def storage(self, oss_server: OssServer) -> Storage:
        return open_oss(f"oss://runs/{prefix()}", oss_server)

    @pytest.fixture
    def other(self, storage: Storage, oss_server: OssServer) -> Storage:
        return open_oss(storage.uri, oss_server)


class TestCos(StorageSuite):
    @pytest.fixture
    def storage(self, s3_env: Seaweed) -> Storage:
        return open_cos(f"cos://runs/{prefix()}", endpoint_url=s3_env.endpoint)


class TestNfs(FileStorageSuite):
    """On a local disk; ``tests/services`` has it on a mount that fails."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return build_nfs(NfsConfig(), BuildContext(uri=f"nfs://{tmp_path}/root"))

    @pytest.fixture
    def other(self, storage: Storage) -> Storage:
        return build_nfs(NfsConfig(), BuildContext(uri=storage.uri))
