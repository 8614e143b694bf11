"""Large files past the page cache: a checkpoint is on the disk sooner, and does not push out what others read.

The kernel wants aligned memory, offsets and lengths: pieces are gathered in an aligned buffer. Where a file system does
not take it, the same buffer is written as usual.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import suppress
from functools import partial
from itertools import chain

from verl_core.types import Bytes

from .threads import Threads

LARGE = 8 << 20  # bytes; also of the buffer
_AHEAD = 64 << 20  # room that is asked for at a time
_threads = Threads()  # none of them holds up the end of the process
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # not on every system
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None)  # os.posix_fallocate writes zeros where there is none
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def large(parts: Iterable[Bytes]) -> tuple[Iterable[memoryview], bool]:
    """The same parts, and whether they are large together. Looks no further than it must."""
    rest, held, size = iter(parts), list[memoryview](), 0
    for part in rest:
        held.append(memoryview(part).cast("B"))
        size += len(held[-1])
        if size >= LARGE:
            return chain(held, (memoryview(part).cast("B") for part in rest)), True
    return held, False


def write(handle: int, parts: Iterable[memoryview], before: Callable[[], None]) -> int:
    """Write from the file's begin, ``before`` each write; returns the bytes. The content is not synced yet.

    While a buffer is on its way to the disk, the other is filled, and what makes the parts does its work.
    """
    file, under_way = _File(handle), None
    try:
        for filled in _filled(parts):
            if under_way is not None:
                under_way.result()
            before()
            under_way = _threads.start(partial(file.write, filled), "disk")
    finally:
        if under_way is not None:
            futures.wait([under_way])  # before the handle is closed
    if under_way is not None:
        under_way.result()
    return file.finish()


def _filled(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    """What comes, in pieces of ``LARGE``, the last one as it is: two buffers take turns."""
    buffer, other, filled = memoryview(mmap.mmap(-1, LARGE)), memoryview(mmap.mmap(-1, LARGE)), 0
    for part in parts:
        while part:
            taken = part[: LARGE - filled]
            buffer[filled : filled + len(taken)] = taken
            filled, part = filled + len(taken), part[len(taken) :]
            if filled == LARGE:
                yield buffer
                buffer, other, filled = other, buffer, 0
    if filled:
        yield buffer[:filled]


class _File:
    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._size = self._room = 0
        self._ahead = True
        self._set(direct=True)

    def write(self, data: memoryview) -> None:
        if len(data) < LARGE:
            self._set(direct=False)  # the end need not be aligned
        self._make_room()
        while data:
            try:
                written = os.write(self._handle, data)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._set(direct=False)  # this file system does not take it
                written = os.write(self._handle, data)
            if written % mmap.PAGESIZE:
                self._set(direct=False)
            self._size += written
            data = data[written:]

    def finish(self) -> int:
        if self._room > self._size:
            os.ftruncate(self._handle, self._size)
        return self._size

    def _make_room(self) -> None:
        """Blocks that are there already are written faster. Without room for all that is asked, the writes decide."""
        if not self._ahead or self._room > self._size:
            return
        if _fallocate is not None and _fallocate(self._handle, 0, self._size, _AHEAD) == 0:
            self._room = self._size + _AHEAD
        else:
            self._ahead = False

    def _set(self, *, direct: bool) -> None:
        flags = fcntl.fcntl(self._handle, fcntl.F_GETFL)
        wanted = flags | _DIRECT if direct else flags & ~_DIRECT
        if wanted != flags:
            with suppress(OSError):
                fcntl.fcntl(self._handle, fcntl.F_SETFL, wanted)
                return
            self._ahead = False
