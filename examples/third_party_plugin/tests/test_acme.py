"""The plugin against the suites that verl-core ships, and what is particular to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from acme_plugin.alerts import FileConfig, FileSink
from acme_plugin.storage import SqliteConfig, build_sqlite
from verl_core.errors import ConfigError, StorageTimeout
from verl_core.protocols import AlertSink, Storage
from verl_core.testing import AlertSinkSuite, DeadAlertSinkSuite, StorageSuite
from verl_core.types import BuildContext


class TestSqlite(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return build_sqlite(SqliteConfig(), BuildContext(uri=f"sqlite://{tmp_path}/runs.db"))

    @pytest.fixture
    def other(self, storage: Storage) -> Storage:
        return build_sqlite(SqliteConfig(), BuildContext(uri=storage.uri))


class TestFileSink(AlertSinkSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> AlertSink:
        return FileSink(FileConfig(str(tmp_path / "alerts.txt")), BuildContext())

    @pytest.fixture
    def received(self, tmp_path: Path) -> Callable[[], str]:
        return (tmp_path / "alerts.txt").read_text


class TestDeadFileSink(DeadAlertSinkSuite):
    @pytest.fixture
    def dead_sink(self, tmp_path: Path) -> AlertSink:
        return FileSink(FileConfig(str(tmp_path)), BuildContext())  # a folder


def test_a_file_that_another_holds_ends_in_a_timeout(tmp_path: Path) -> None:
    storage = build_sqlite(SqliteConfig(busy_timeout_s=0.2), BuildContext(uri=f"sqlite://{tmp_path}/runs.db"))
    storage.put("a", b"1")
    holder = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StorageTimeout, match="who holds the file"):
        storage.put("a", b"2")
    holder.close()
    assert storage.get("a") == b"1"


def test_a_uri_without_a_database_is_refused() -> None:
    with pytest.raises(ConfigError, match="sqlite:///folder"):
        build_sqlite(SqliteConfig(), BuildContext(uri="sqlite://runs"))
