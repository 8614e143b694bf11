"""SHA-256 of files, remembered by size, times and inode, so that a restart does not read all the data again.

What is remembered is trusted only when the file had been left alone for a while before it was hashed: a write that
follows the hashing then gets a later time than the remembered one. Otherwise the two may share a tick of the file
system's clock, and the file is read again (git calls such entries racily clean). The while is longer than the coarsest
tick (2 s), and than what the clocks of a file server and of its clients may differ by.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ..committed import seal, unseal
from ..errors import DataError

RACY_NS = 60 * 10**9
TRIES = 3  # at a file that changes while it is read
_BLOCK = 1 << 20  # bytes
_THREADS = 8  # hashing leaves the interpreter lock: one thread a file


@dataclass(frozen=True, slots=True)
class Hashed:
    """A hash, and what stat told of the file when it was taken."""

    sha256: str  # "sha256:…"
    size: int  # bytes
    mtime_ns: int
    ctime_ns: int  # cannot be set back, as mtime can
    inode: int
    hashed_ns: int  # wall time at which reading began

    def looks_like(self, info: os.stat_result) -> bool:
        return (self.size, self.mtime_ns, self.ctime_ns, self.inode) == _facts(info)

    def stands_for(self, info: os.stat_result) -> bool:
        """Whether the file is certainly as it was when it was hashed."""
        return self.looks_like(info) and self.hashed_ns - max(self.mtime_ns, self.ctime_ns) >= RACY_NS


class FileHashes:
    """Hashes of files by path. It is only a cache: without it, or with a damaged one, files are read."""

    def __init__(self, known: Mapping[str, Hashed] | None = None, clock: Callable[[], int] = time.time_ns) -> None:
        self._known, self._clock = dict(known or {}), clock
        self._mutex = threading.Lock()
        self.bytes_read = 0

    def of(self, path: Path) -> Hashed:
        """Raises DataError for a file that cannot be read, or that is being written to."""
        with _named(path), path.open("rb") as stream:
            info = os.fstat(stream.fileno())
            known = self._known.get(str(path))
            if known is not None and known.stands_for(info):
                return known
            for _ in range(TRIES):
                began = self._clock()
                digest = self._digest(stream)
                before, info = info, os.fstat(stream.fileno())
                if _facts(before) == _facts(info):
                    found = self._known[str(path)] = Hashed(digest, *_facts(info), began)
                    return found
        raise _changing(path)

    def of_all(self, paths: Sequence[Path]) -> list[Hashed]:
        """In the order of ``paths``. Raises the error of the first that has one."""
        with ThreadPoolExecutor(max(1, min(_THREADS, len(paths), os.cpu_count() or 1)), "verl-hash") as pool:
            return list(pool.map(self.of, paths))

    def check_unchanged(self, paths: Sequence[Path]) -> None:
        """Raises DataError when a file is not the one any more that was hashed: what was read of it may be of both."""
        for path in paths:
            with _named(path):
                if self._known[str(path)].looks_like(path.stat()):
                    continue
            raise _changing(path)

    def begins_with(self, path: Path, size: int, sha256: str) -> bool:
        """Whether the first ``size`` bytes of a file have this hash: it was only appended to since."""
        with _named(path), path.open("rb") as stream:
            return self._digest(stream, size) == sha256

    def encode(self) -> bytes:
        return seal({path: asdict(hashed) for path, hashed in self._known.items()}) if self._known else b""

    @staticmethod
    def decode(data: bytes) -> FileHashes:
        """Nothing is known where ``data`` is not what ``encode`` wrote."""
        try:
            return FileHashes({path: Hashed(**fields) for path, fields in unseal(data).items()})
        except (ValueError, TypeError):
            return FileHashes()

    def _digest(self, stream: IO[bytes], size: int | None = None) -> str:
        found, left = hashlib.sha256(), size
        stream.seek(0)
        while block := stream.read(_BLOCK if left is None else min(_BLOCK, left)):
            found.update(block)
            left = None if left is None else left - len(block)
        with self._mutex:
            self.bytes_read += stream.tell()
        return f"sha256:{found.hexdigest()}"


def _changing(path: Path) -> DataError:
    return DataError("the file changes while it is read", where=str(path), remedy="wait until it is written")


def _facts(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(error.strerror or str(error), where=str(path)) from error
