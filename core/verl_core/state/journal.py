"""``state_log.jsonl``: every transition and decision, one line each, hash-chained, durable before its effects.

A line is a JSON object; ``hash`` is the blake3 of the rest of the line, ``prev`` the hash of the line before,
``durable`` the number of lines that were durable when it was handed in. Lines are appended in groups, and a power cut
may tear a group anywhere: from the first line on that is not whole, all is put aside and never trusted. It is damage,
and an error, when a later line says that this one was durable.
Where a store cannot append, or has no locks, the same lines lie in objects of a few each (see ``segments``, ``spill``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

import orjson

from ..errors import JournalError
from ..protocols import FileStorage, Storage
from ..writes import LineSink, Writes
from .lines import START, Entry, check_chain, made, parse, seal, whole
from .segments import SegmentLog, Segments, read_segments
from .spill import Spilling, SpillPlace

__all__ = ["START", "Entry", "Journal", "Log", "lockable", "parse", "read_log", "repair", "seal"]


def lockable(storage: Storage) -> TypeGuard[FileStorage]:
    """Whether a storage appends, and has locks that die with their process: one file holds the log then."""
    if not isinstance(storage, FileStorage):
        return False
    can = storage.capabilities()
    return can.append and can.lock


@dataclass(frozen=True, slots=True)
class Log:
    """A state log as read: its whole lines, and what is left of a torn append behind them."""

    entries: tuple[Entry, ...]
    size: int  # bytes of the whole lines
    torn: bytes
    segments: SegmentLog | None = None  # where the lines lie in objects


def read_log(storage: Storage, path: str) -> Log:
    """All entries with the chain checked. A missing file is an empty log. Raises JournalError."""
    if not lockable(storage):
        found = read_segments(storage, path)
        return Log(found.entries, 0, b"", found)
    data = storage.get(path) if storage.stat(path) is not None else b""
    entries: list[Entry] = []
    size = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        where = f"{storage.uri}/{path}:{number}"
        try:
            entry = whole(line, where)
        except JournalError as error:
            if _was_durable(len(entries), lines[number:]):
                raise _broken(error) from None
            break
        try:
            check_chain(entry, entries[-1] if entries else None, where)
        except JournalError as error:
            raise _broken(error) from None
        entries.append(entry)
        size += len(line)
    return Log(tuple(entries), size, data[size:])


def _was_durable(seq: int, later: Sequence[bytes]) -> bool:
    """Whether a line further on was handed in when line ``seq`` was durable."""
    for line in later:
        with suppress(JournalError):
            entry = whole(line, "")
            if seq < (entry.seq if entry.durable is None else entry.durable):
                return True
    return False


def _broken(error: JournalError) -> JournalError:
    return JournalError(
        error.what, where=error.where, remedy="restore state_log.jsonl from a backup; nothing was changed"
    )


class Journal:
    """Appends entries through the write queue. ``record`` returns at once; ``writes.barrier()`` makes durable."""

    def __init__(
        self,
        storage: Storage,
        path: str,
        log: Log,
        writes: Writes,
        *,
        identity: tuple[str, int, int, str],  # run id, branch, attempt, nonce
        wall: Callable[[], float],
        sync: bool = True,
        spill: SpillPlace | None = None,
    ) -> None:
        """``spill``: where lines go while the objects of the log cannot be written; None: nowhere."""
        self._identity = identity
        self._writes, self._wall = writes, wall
        self._file: _LogFile | None = None
        self._segments: Segments | None = None
        self._sink: LineSink
        if log.segments is not None:
            begins = not log.entries or log.entries[-1].nonce != identity[-1]
            self._segments = Segments(storage, path, log.segments, begins=begins)
            self._sink = self._segments if spill is None else Spilling(self._segments, spill)
        else:
            assert isinstance(storage, FileStorage)
            self._file = self._sink = _LogFile(storage, path, log, sync)
        self._last = log.entries[-1] if log.entries else None

    def record(self, event: str, state: str, payload: object) -> Entry:
        """Hand one entry to the writer thread, behind everything that it speaks of; return it as a reader will see it.

        ``payload``: a record or mapping of JSON values.
        """
        durable = None if self._file is None else self._file.durable
        line = made(self._last, self._wall(), self._identity, state, event, payload, durable)
        self._last = Entry(**orjson.loads(line))
        self._writes.line(self._sink, line)
        if self._segments is not None and self._segments.fold_due:
            self._segments.fold_due = False
            self._writes.submit(self._segments.fold)
        return self._last

    def settle(self) -> None:
        """At the end: hand in the writing of lines that wait elsewhere."""
        if isinstance(self._sink, Spilling):
            self._writes.submit(self._sink.settle)


class _LogFile:
    """The file behind a journal. It knows how long it must be, so that a failed append can be made again."""

    def __init__(self, storage: FileStorage, path: str, log: Log, sync: bool) -> None:
        self._storage, self._path, self._size, self._sync = storage, path, log.size, sync
        self._sure = False  # that the file has this size
        self._lines, self.durable = len(log.entries), 0  # a process that died may not have synced what it wrote

    def write(self, lines: bytes) -> None:
        if not self._sure:
            there = self._storage.stat(self._path)
            if there is not None and there.size != self._size:
                self._storage.truncate(self._path, self._size)
        self._sure = False
        self._storage.append(self._path, lines, sync=self._sync)
        self._size += len(lines)
        self._lines += lines.count(b"\n")
        if self._sync:
            self.durable = self._lines
        self._sure = True


def repair(storage: Storage, path: str, log: Log, attempt: int) -> None:
    """Put a torn tail aside (``<path>.torn.<attempt>``) and cut it off; one that lies there is never lost."""
    if log.torn and isinstance(storage, FileStorage):  # an object is whole, or it is not there
        aside, number = f"{path}.torn.{attempt}", 0
        while storage.stat(aside) is not None and storage.get(aside) != log.torn:  # of an attempt that left no line
            number += 1
            aside = f"{path}.torn.{attempt}.{number}"
        storage.put(aside, log.torn)
        storage.truncate(path, log.size)
