"""The state log while its object store is down: lines wait in a file of the run's folder, and are written in order when
the store is back.

A line is durable in ``state_log.spill.jsonl`` then, so that the run goes on, and goes on where it was when it is killed
meanwhile. What waits goes to the store as it would have gone at once, by create-once: a conflict means that another
controller took over, and these lines are nobody's any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import JournalError, RunBusy, StorageError
from ..protocols import FileStorage, Storage
from ..testing import crash
from ..writes import TRANSIENT
from .lines import parse
from .segments import Segments, read_segments

SPILL = "state_log.spill.jsonl"
RETRY_S = 5.0  # at least, between two tries; at most a quarter of the time goes into tries
_LOOKS = 5  # how often a late answer of the one before may get in between
_log = logging.getLogger("verl.state")


@dataclass(frozen=True, slots=True)
class SpillPlace:
    files: FileStorage
    limit_s: float  # how long the store may be down
    on_wait: Callable[[StorageError], None] = lambda error: None


class Spilling:
    """Where a journal's lines go: ``Segments``, and a file while their store is down. Called by one thread."""

    def __init__(self, segments: Segments, place: SpillPlace, clock: Callable[[], float] = time.monotonic) -> None:
        self._segments, self._place, self._clock = segments, place, clock
        self._tried, self._behind = b"", b""  # the first may land yet: it is tried again as it was
        self._size = 0  # of the file
        self._down_since = self._next_try = 0.0

    def write(self, lines: bytes) -> None:
        """Durable on return, in the store or in the file. Raises RunBusy, and what the store raises once it has been
        down for too long; may be called again with the same lines after any other error."""
        if self._tried and self._clock() >= self._next_try:
            self._try_again()
        if self._tried:
            self._append(lines)
            self._behind += lines
            return
        begin = self._clock()
        try:
            self._segments.write(lines)
        except TRANSIENT as error:
            self._append(lines)
            self._tried, self._down_since = lines, begin
            self._wait(begin)
            _log.warning("%s; the state log's lines wait in %s/%s", error, self._place.files.uri, SPILL)
            self._place.on_wait(error)

    def settle(self) -> None:
        """Write all that waits. Raises what the store raises; may be called again."""
        while self._tried:
            self._segments.write(self._tried)
            crash.point("spill.carried")
            self._tried, self._behind = self._behind, b""
        if self._size:
            self._place.files.delete(SPILL)
            self._size = 0
            _log.warning("the state log's store is back: the lines that waited are there")

    def _try_again(self) -> None:
        begin = self._clock()
        try:
            self.settle()
        except TRANSIENT:
            if self._clock() - self._down_since > self._place.limit_s:
                raise
            self._wait(begin)

    def _wait(self, begin: float) -> None:
        now = self._clock()
        self._next_try = now + max(RETRY_S, 3 * (now - begin))

    def _append(self, lines: bytes) -> None:
        there = self._place.files.stat(SPILL)
        if there is not None and there.size != self._size:  # an append that failed half way
            self._place.files.truncate(SPILL, self._size)
        self._place.files.append(SPILL, lines)
        self._size += len(lines)
        crash.point("spill.appended")


def carry_over(files: Storage, storage: Storage, path: str) -> None:
    """At a start: write to the store of the log what the attempt before left in its file. Raises StorageError.

    Lines that do not go on where the store's end are those of a run that another controller took over: they are put
    aside, with a warning.
    """
    if not isinstance(files, FileStorage) or files.stat(SPILL) is None:
        return
    lines = _whole_lines(files)
    for _ in range(_LOOKS):
        log = read_segments(storage, path)
        there = len(log.entries)
        first = parse(lines[0], SPILL).seq if lines else there
        known = [entry.hash for entry in log.entries[first:]]
        if first > there or [parse(line, SPILL).hash for line in lines[: len(known)]] != known[: len(lines)]:
            aside = f"{SPILL}.{there}"
            _log.warning("%s/%s is not of the run as it went on: moved to %s", files.uri, SPILL, aside)
            files.move(SPILL, aside)
            return
        if rest := b"".join(lines[len(known) :]):
            try:
                Segments(storage, path, log, begins=True).write(rest)
            except RunBusy:  # what the one before had sent may have landed now: look again
                continue
            crash.point("spill.carried")
        files.delete(SPILL)
        return
    raise JournalError("it changes while it is read", where=f"{storage.uri}/{path}", remedy="stop who writes to it")


def _whole_lines(files: FileStorage) -> list[bytes]:
    """Those before a torn end, which was never called durable."""
    found: list[bytes] = []
    for line in files.get(SPILL).splitlines(keepends=True):
        try:
            parse(line, SPILL)
        except JournalError:
            break
        found.append(line)
    return found
