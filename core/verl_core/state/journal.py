"""``state_log.jsonl``: every transition and decision, one line each, hash-chained, durable before its effects.

A line is a JSON object; ``hash`` is the blake3 of the rest of the line, ``prev`` the hash of the line before. A last
line that is torn (cut short, or not what its hash says) is put aside and never trusted; damage before it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
from blake3 import blake3

from ..errors import JournalError
from ..protocols import FileStorage
from ..writes import Writes

START = "0" * 32  # ``prev`` of the first line


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. ``state`` is the state after it; ``payload`` holds JSON values only."""

    seq: int
    time: float  # seconds since the epoch, for people: nothing is decided by it
    run_id: str
    branch: int
    attempt: int
    nonce: str
    state: str
    event: str
    payload: Mapping[str, object]
    prev: str
    hash: str

    def body(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in Entry.__slots__ if name != "hash"}


def seal(entry_body: Mapping[str, object]) -> tuple[str, bytes]:
    """The hash of a line's body, and the whole line."""
    body = orjson.dumps(entry_body)
    digest = blake3(body).hexdigest(16)
    return digest, body[:-1] + b',"hash":"' + digest.encode() + b'"}\n'


def parse(line: bytes, where: str) -> Entry:
    """Raises JournalError when the line is not what its hash says."""
    try:
        fields = orjson.loads(line)
        digest = fields.pop("hash")
        if seal(fields)[0] != digest:
            raise JournalError("the line is not what its hash says", where=where)
        return Entry(**fields, hash=digest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JournalError(f"not a line of a state log ({error})", where=where) from None


@dataclass(frozen=True, slots=True)
class Log:
    """A state log as read: its whole lines, and what is left of a torn one behind them."""

    entries: tuple[Entry, ...]
    size: int  # bytes of the whole lines
    torn: bytes


def read_log(storage: FileStorage, path: str) -> Log:
    """All entries with the chain checked. A missing file is an empty log. Raises JournalError."""
    data = storage.get(path) if storage.stat(path) is not None else b""
    entries: list[Entry] = []
    size, prev = 0, START
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        where = f"{storage.uri}/{path}:{number}"
        try:
            entry = parse(line, where)
            if not line.endswith(b"\n"):
                raise JournalError("the line is cut short", where=where)
        except JournalError as error:
            if number == len(lines):
                break
            raise _broken(error) from None
        if entry.prev != prev or entry.seq != len(entries):
            raise _broken(JournalError("the chain of hashes is broken", where=where))
        entries.append(entry)
        size, prev = size + len(line), entry.hash
    return Log(tuple(entries), size, data[size:])


def _broken(error: JournalError) -> JournalError:
    return JournalError(
        error.what, where=error.where, remedy="restore state_log.jsonl from a backup; nothing was changed"
    )


class Journal:
    """Appends entries through the write queue. ``record`` returns at once; ``writes.barrier()`` makes durable."""

    def __init__(
        self,
        storage: FileStorage,
        path: str,
        log: Log,
        writes: Writes,
        *,
        identity: tuple[str, int, int, str],  # run id, branch, attempt, nonce
        wall: Callable[[], float],
        sync: bool = True,
    ) -> None:
        self._file = _LogFile(storage, path, log.size, sync)
        self._writes, self._wall = writes, wall
        self._run_id, self._branch, self._attempt, self._nonce = identity
        self._seq = len(log.entries)
        self._prev = log.entries[-1].hash if log.entries else START

    def record(self, event: str, state: str, payload: object) -> Entry:
        """Hand one entry to the writer thread, behind everything that it speaks of; return it as a reader will see it.

        ``payload``: a record or mapping of JSON values.
        """
        body = {
            "seq": self._seq,
            "time": round(self._wall(), 6),
            "run_id": self._run_id,
            "branch": self._branch,
            "attempt": self._attempt,
            "nonce": self._nonce,
            "state": state,
            "event": event,
            "payload": payload,
            "prev": self._prev,
        }
        self._prev, line = seal(body)
        self._seq += 1
        self._writes.line(self._file, line)
        return Entry(**orjson.loads(line))


class _LogFile:
    """The file behind a journal. It knows how long it must be, so that a failed append can be made again."""

    def __init__(self, storage: FileStorage, path: str, size: int, sync: bool) -> None:
        self._storage, self._path, self._size, self._sync = storage, path, size, sync
        self._sure = False  # that the file has this size

    def write(self, lines: bytes) -> None:
        if not self._sure:
            there = self._storage.stat(self._path)
            if there is not None and there.size != self._size:
                self._storage.truncate(self._path, self._size)
        self._sure = False
        self._storage.append(self._path, lines, sync=self._sync)
        self._size += len(lines)
        self._sure = True


def repair(storage: FileStorage, path: str, log: Log, attempt: int) -> None:
    """Put a torn last line aside (``<path>.torn.<attempt>``) and cut it off. Harmless when nothing is torn."""
    if log.torn:
        storage.put(f"{path}.torn.{attempt}", log.torn)
        storage.truncate(path, log.size)
