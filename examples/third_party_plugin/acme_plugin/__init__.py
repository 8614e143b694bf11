"""A storage in an SQLite file, and an alert sink that appends to a text file."""

from __future__ import annotations

from verl_core import hookimpl
from verl_core.hookspecs import Register
from verl_core.protocols import AlertSink, Storage

from .alerts import FileConfig, FileSink
from .storage import SqliteConfig, build_sqlite


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("sqlite", SqliteConfig, build_sqlite)


@hookimpl
def register_alert_sinks(register: Register[AlertSink]) -> None:
    register("acme_file", FileConfig, FileSink)
