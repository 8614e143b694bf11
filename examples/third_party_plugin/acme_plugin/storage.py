"""Storage ``sqlite``: objects as rows of one file, ``sqlite:///folder/name.db/prefix``.

A row is written in one transaction, so readers see an object whole or not at all, and its primary key makes a name
taken once. Objects may have up to 1 GB.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from verl_core.errors import (
    ConfigError,
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTimeout,
)
from verl_core.types import BuildContext, Bytes, Capabilities, ObjectStat

_TABLE = "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, data BLOB, mtime REAL)"
_MAX = 1_000_000_000  # bytes that SQLite takes in one value
_ERRORS: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_BUSY: (StorageTimeout, "see who holds the file, or raise storage.busy_timeout_s"),
    sqlite3.SQLITE_FULL: (StorageFull, "make room on this file system"),
    sqlite3.SQLITE_READONLY: (StorageReadOnly, "make the file writable"),
    sqlite3.SQLITE_CANTOPEN: (StorageDenied, "check the folder and its permissions"),
}


@dataclass
class SqliteConfig:
    """What the user may set, in the ``storage`` block."""

    busy_timeout_s: float = 30.0  # how long a call waits for others who write


def build_sqlite(config: SqliteConfig, context: BuildContext) -> SqliteStorage:
    """Open ``context.uri``. Nothing is made before the first write."""
    path, mark, prefix = context.uri.removeprefix("sqlite://").partition(".db")
    if not mark or not path.startswith("/") or prefix[:1] not in ("", "/"):
        raise ConfigError("not a database file", where=context.uri, remedy="give sqlite:///folder/name.db[/prefix]")
    return SqliteStorage(path + mark, prefix.strip("/"), config.busy_timeout_s)


class SqliteStorage:
    def __init__(self, file: str, prefix: str, busy_timeout_s: float) -> None:
        self._file, self._prefix, self._busy_timeout_s = file, f"{prefix}/" if prefix else "", busy_timeout_s
        self.uri = f"sqlite://{file}/{prefix}".rstrip("/")

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=False, append=False, conditional_put=True, lock=False)

    def child(self, prefix: str) -> SqliteStorage:
        return SqliteStorage(self._file, self._name(prefix), self._busy_timeout_s)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        name = self._name(path)
        content = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(map(bytes, data))
        os.makedirs(os.path.dirname(self._file), exist_ok=True)
        verb = "INSERT" if if_absent else "REPLACE"
        with self._opened(f"{self.uri}/{path}") as db:
            db.execute(_TABLE)
            try:
                db.execute(f"{verb} INTO objects VALUES (?, ?, ?)", (name, content, time.time()))
            except sqlite3.IntegrityError as error:
                raise ObjectExists("put: it is there already", where=f"{self.uri}/{path}") from error
        return len(content)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        length = _MAX if end is None else max(0, end - start)
        query = "SELECT substr(data, ?, ?) FROM objects WHERE name = ?"
        for (data,) in self._rows(path, query, (start + 1, length, self._name(path))):
            return bytes(data or b"")  # a part without bytes is NULL
        raise ObjectMissing("get: no such object", where=f"{self.uri}/{path}")

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        below = f"{self._name(prefix.rstrip('/'))}/" if prefix else self._prefix
        query = "SELECT name, length(data), mtime FROM objects WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name"
        for name, size, mtime in self._rows(prefix, query, (below,)):
            yield ObjectStat(str(name).removeprefix(self._prefix), int(size), float(mtime))

    def stat(self, path: str) -> ObjectStat | None:
        query = "SELECT length(data), mtime FROM objects WHERE name = ?"
        for size, mtime in self._rows(path, query, (self._name(path),)):
            return ObjectStat(path, int(size), float(mtime))
        return None

    def delete(self, path: str) -> None:
        name = self._name(path)
        query = "DELETE FROM objects WHERE name = ?1 OR substr(name, 1, length(?1) + 1) = ?1 || '/'"
        self._rows(path, query, (name,))

    # --- steps -------------------------------------------------------------------------------

    def _rows(self, path: str, query: str, values: tuple[str | int, ...]) -> Sequence[Any]:
        if not os.path.exists(self._file):
            return []
        with self._opened(f"{self.uri}/{path}") as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _opened(self, where: str) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction; its errors become those of the storage tree."""
        try:
            with closing(sqlite3.connect(self._file, timeout=self._busy_timeout_s)) as db, db:
                yield db
        except sqlite3.Error as error:
            kind, remedy = _ERRORS.get(error.sqlite_errorcode & 0xFF, (StorageError, ""))
            raise kind(str(error), where=where, remedy=remedy) from error

    def _name(self, path: str) -> str:
        if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise StorageError(f"{path!r} is not a path below this root", where=self.uri)
        return self._prefix + path
