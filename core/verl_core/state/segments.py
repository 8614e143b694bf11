"""A state log on a store that cannot append: create-once objects of a few lines each. Creating the next is the fence.

``state_log.d/<seq>.jsonl`` holds the lines from number ``seq`` on, as one group of them was written. Whoever finds the
number that it would write next taken by other lines has been replaced, and stops. Behind the writing, 64 lines at a
time are folded into ``<first>-<last>.jsonl``, and 64 of these into one of 4096 lines. Folds begin at fixed numbers, so
that whoever makes one makes the same; each is created once, and read back before what it holds is deleted. A segment
that begins the lines of another writer is never deleted: the one before, should it wake up, must find it.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..committed import create
from ..errors import JournalError, ObjectMissing, RunBusy, StorageError
from ..protocols import Storage
from ..testing import crash
from .lines import Entry, check_chain, parse, whole

_log = logging.getLogger("verl.state")
FOLD, WIDE = 64, 64 * 64  # lines of a fold, and of a fold of folds
_NAME = re.compile(r"(\d{12})(?:-(\d{12}))?\.jsonl")
_LOOKS = 5  # how often a log that is being folded is listed


@dataclass(slots=True)
class Names:
    """The objects of a log, by the number of their first line."""

    segments: set[int] = field(default_factory=set)
    folds: set[int] = field(default_factory=set)
    wide: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        found = cls()
        for name in names:
            if match := _NAME.fullmatch(name):
                lines = int(match[2]) + 1 - int(match[1]) if match[2] else 0
                kind = {0: found.segments, FOLD: found.folds, WIDE: found.wide}.get(lines)
                if kind is not None:
                    kind.add(int(match[1]))
        return found


@dataclass(frozen=True, slots=True)
class SegmentLog:
    """A log as it was read. ``lines`` are those that no fold holds yet; ``sizes`` says how many lines the segments have
    that were read."""

    entries: tuple[Entry, ...]
    names: Names
    lines: tuple[bytes, ...]
    sizes: Mapping[int, int]

    @property
    def fences(self) -> set[int]:
        """Numbers at which the lines of another writer begin."""
        pairs = enumerate(zip(self.entries[1:], self.entries, strict=False), 1)
        return {0, *(number for number, (entry, before) in pairs if entry.nonce != before.nonce)}


def folder_of(path: str) -> str:
    """``state_log.jsonl`` → ``state_log.d``."""
    return f"{path.removesuffix('.jsonl')}.d"


def segment_name(seq: int) -> str:
    return f"{seq:012d}.jsonl"


def fold_name(first: int, lines: int) -> str:
    return f"{first:012d}-{first + lines - 1:012d}.jsonl"


# --- reading ---------------------------------------------------------------------------------


class _Gap(JournalError):
    """Lines are missing: lost, or folded while they were listed."""


def read_segments(storage: Storage, path: str) -> SegmentLog:
    """All lines, by one listing and one read an object, with the chain checked. Raises JournalError.

    Safe beside a controller that writes and folds: what vanishes meanwhile lies in another object then.
    """
    folder = folder_of(path)
    for look in range(_LOOKS):
        try:
            return _Reader(storage, folder).read()
        except (ObjectMissing, _Gap) as error:
            if look == _LOOKS - 1 and isinstance(error, _Gap):
                raise
    raise JournalError("it changes faster than it can be read", where=f"{storage.uri}/{folder}", remedy="try again")


class _Reader:
    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._entries: list[Entry] = []
        self._lines: list[bytes] = []
        self._sizes: dict[int, int] = {}

    def read(self) -> SegmentLog:
        names = Names.of(stat.path.rpartition("/")[2] for stat in self._storage.list(self._folder))
        segments = sorted(names.segments)
        while True:
            seq = len(self._entries)
            if seq in names.wide or seq in names.folds:
                self._take(fold_name(seq, WIDE if seq in names.wide else FOLD), 0)
                self._lines.clear()
                continue
            place = bisect_right(segments, seq) - 1
            if place < 0 or segments[place] in self._sizes:
                break
            first = segments[place]
            taken = self._take(segment_name(first), seq - first)
            self._lines += taken
            self._sizes[first] = seq - first + len(taken)
            if not taken:  # left over: its lines were folded
                break
        beyond = [first for first in names.segments | names.folds | names.wide if first > len(self._entries)]
        if beyond:
            what = f"lines {len(self._entries)} to {min(beyond) - 1} are missing"
            raise _Gap(what, where=f"{self._storage.uri}/{self._folder}", remedy=_RESTORE)
        return SegmentLog(tuple(self._entries), names, tuple(self._lines), self._sizes)

    def _take(self, name: str, skip: int) -> list[bytes]:
        """The lines of an object, from number ``skip`` in it on."""
        lines = self._storage.get(f"{self._folder}/{name}").splitlines(keepends=True)[skip:]
        for number, line in enumerate(lines, skip + 1):
            where = f"{self._storage.uri}/{self._folder}/{name}:{number}"
            try:
                entry = whole(line, where)
                check_chain(entry, self._entries[-1] if self._entries else None, where)
            except JournalError as error:
                raise JournalError(error.what, where=where, remedy=_RESTORE) from None
            self._entries.append(entry)
        return lines


_RESTORE = "restore the object from a backup; nothing was changed"


# --- writing ---------------------------------------------------------------------------------


def claim(storage: Storage, path: str, log: SegmentLog, line: bytes) -> SegmentLog | Entry:
    """Write the first line of an attempt: the log with it, or the line that was written in its place."""
    seq = len(log.entries)
    name = f"{folder_of(path)}/{segment_name(seq)}"
    found = create(storage, name, line)
    crash.point("segment.claimed")
    if found is None:
        found = _line_before(storage, folder_of(path), seq, line)
    if found is not None:
        return _first(found, f"{storage.uri}/{name}")
    log.names.segments.add(seq)
    entry = parse(line, segment_name(seq))
    return SegmentLog((*log.entries, entry), log.names, (*log.lines, line), {**log.sizes, seq: 1})


class Segments:
    """Where a journal's lines go. One writer, whose nonce is not that of the newest line when it ``begins``; ``write``
    and ``fold`` are called by one thread."""

    def __init__(self, storage: Storage, path: str, log: SegmentLog, *, begins: bool) -> None:
        self._storage, self._folder = storage, folder_of(path)
        self._next, self._lines = len(log.entries), list(log.lines)
        self._names, self._sizes = log.names, dict(log.sizes)
        self._begins, self._fences = begins, log.fences | ({self._next} if begins else set())
        self.fold_due = False

    def write(self, lines: bytes) -> None:
        """Durable on return. Raises RunBusy when another controller has written in its place; may be called again
        with the same lines after any other error."""
        name = segment_name(self._next)
        found = create(self._storage, f"{self._folder}/{name}", lines)
        if found is None and self._begins:
            found = _line_before(self._storage, self._folder, self._next, lines)
        if found is not None:
            where = f"{self._storage.uri}/{self._folder}/{name}"
            raise taken_over(_first(found, where), where)
        crash.point("segment.created")
        self._begins = False
        new = lines.splitlines(keepends=True)
        self._names.segments.add(self._next)
        self._sizes[self._next] = len(new)
        self._lines += new
        self._next += len(new)
        self.fold_due = len(self._lines) >= FOLD

    def fold(self) -> None:
        """Fold what is due, and delete what the folds hold. What an error leaves undone is done by a later call."""
        self.fold_due = False
        try:
            while len(self._lines) >= FOLD:
                self._make(self._next - len(self._lines), FOLD, b"".join(self._lines[:FOLD]))
                del self._lines[:FOLD]
            self._drop_segments()
            self._widen()
        except StorageError as error:
            _log.warning("the state log is folded later: %s", error)

    def _make(self, first: int, lines: int, data: bytes) -> None:
        path = f"{self._folder}/{fold_name(first, lines)}"
        found = create(self._storage, path, data)
        crash.point("fold.created")
        if found is not None or self._storage.get(path) != data:
            raise StorageError("the fold reads back differently", where=f"{self._storage.uri}/{path}")
        (self._names.folds if lines == FOLD else self._names.wide).add(first)

    def _drop_segments(self) -> None:
        """Delete each segment whose every line is in a fold. A fold goes only when a wider one holds it, so that each
        line is somewhere at any time, whoever else folds or deletes."""
        for first in sorted(self._names.segments - self._fences):
            if self._folded(first) and self._folded(first + self._size(first) - 1):
                self._delete(segment_name(first))
                self._names.segments.discard(first)
                self._sizes.pop(first, None)

    def _folded(self, line: int) -> bool:
        return line - line % FOLD in self._names.folds or line - line % WIDE in self._names.wide

    def _size(self, first: int) -> int:
        if first not in self._sizes:  # of an attempt that died while it deleted
            self._sizes[first] = self._storage.get(f"{self._folder}/{segment_name(first)}").count(b"\n")
        return self._sizes[first]

    def _widen(self) -> None:
        for first in sorted({first - first % WIDE for first in self._names.folds}):
            parts = range(first, first + WIDE, FOLD)
            if first not in self._names.wide:
                if not self._names.folds.issuperset(parts):
                    continue
                read = (self._storage.get(f"{self._folder}/{fold_name(part, FOLD)}") for part in parts)
                self._make(first, WIDE, b"".join(read))
            for part in self._names.folds.intersection(parts):
                self._delete(fold_name(part, FOLD))
                self._names.folds.discard(part)

    def _delete(self, name: str) -> None:
        self._storage.delete(f"{self._folder}/{name}")
        crash.point("fold.deleted")


def _line_before(storage: Storage, folder: str, seq: int, lines: bytes) -> bytes | None:
    """What was written at ``seq`` before these lines. Whoever begins to write must look: where a fold holds a line, its
    segment may be gone, so that the name was free though the log ends elsewhere."""
    for width in (FOLD, WIDE):  # in this order: the narrow one goes only when the wide one is there
        first = seq - seq % width
        try:
            found = storage.get(f"{folder}/{fold_name(first, width)}").splitlines(keepends=True)[seq - first]
        except ObjectMissing:
            continue
        return None if lines.startswith(found) else found
    return None


def taken_over(entry: Entry, where: str) -> RunBusy:
    """The error of a controller that finds another one's line where its own should be."""
    place = f", process {entry.payload['pid']} on {entry.payload['host']}" if "pid" in entry.payload else ""
    what = f"another controller took over: attempt {entry.attempt} (nonce {entry.nonce}){place}"
    return RunBusy(what, where=where, remedy=_LEAVE)


def _first(found: bytes, where: str) -> Entry:
    try:
        return parse(found.splitlines(keepends=True)[0], where)
    except (JournalError, IndexError):
        raise RunBusy("something else was written in place of the next line", where=where, remedy=_LEAVE) from None


_LEAVE = "leave the run to that one"
