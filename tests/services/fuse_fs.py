"""A FUSE file system that hands on to a folder, and fails on command: its mode is read from a file at each operation.

python fuse_fs.py BACK MOUNT MODE_FILE
"""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

import mfusepy as fuse

ERRORS = {"full": errno.ENOSPC, "read_only": errno.EROFS, "stale": errno.ESTALE, "io_error": errno.EIO}
WRITES_ONLY = ("full", "read_only")
SLOW_S = 0.15
_STAT = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino")


class Faulty(fuse.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, back: str, control: str) -> None:
        self._back, self._control = back, control

    def _mode(self) -> str:
        with open(self._control) as file:
            return file.read().strip()

    def _gate(self, write: bool = False) -> None:
        while (mode := self._mode()) == "hung":
            time.sleep(0.05)
        if mode == "slow":
            time.sleep(SLOW_S)
        if mode in ERRORS and (write or mode not in WRITES_ONLY):
            raise fuse.FuseOSError(ERRORS[mode])

    def _lost(self, what: str) -> None:
        """The work is done, and the answer an error."""
        if self._mode() == f"lost_{what}":
            raise fuse.FuseOSError(errno.EIO)

    def _at(self, path: str) -> str:
        return self._back + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        self._gate()
        info = os.fstat(fh) if fh is not None else os.lstat(self._at(path))
        times = {"st_mtime": info.st_mtime_ns, "st_atime": info.st_atime_ns, "st_ctime": info.st_ctime_ns}
        return {name: getattr(info, name) for name in _STAT} | times

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        self._gate()
        with os.scandir(self._at(path)) as entries:
            found = [
                (e.name, {"st_ino": e.inode(), "st_mode": e.stat(follow_symlinks=False).st_mode}, 0) for e in entries
            ]
        here = {"st_ino": os.stat(self._at(path)).st_ino, "st_mode": 0o040755}
        return [(".", here, 0), ("..", here, 0), *found]

    def open(self, path: str, flags: int) -> int:
        self._gate(bool(flags & (os.O_WRONLY | os.O_RDWR)))
        return os.open(self._at(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self._gate(True)
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._gate()
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._gate(True)
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        self._gate(True)
        os.truncate(self._at(path), length)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._gate(True)
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._gate(True)
        return 0

    def link(self, target: str, source: str) -> None:
        self._gate(True)
        os.link(self._at(source), self._at(target))
        self._lost("link")

    def rename(self, old: str, new: str, *flags: object) -> None:
        self._gate(True)
        os.rename(self._at(old), self._at(new))
        self._lost("rename")

    def unlink(self, path: str) -> None:
        self._gate(True)
        os.unlink(self._at(path))

    def mkdir(self, path: str, mode: int) -> None:
        self._gate(True)
        os.mkdir(self._at(path), mode)

    def rmdir(self, path: str) -> None:
        self._gate(True)
        os.rmdir(self._at(path))

    def statfs(self, path: str) -> dict[str, int]:
        self._gate()
        info = os.statvfs(self._at(path))
        names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize", "f_files", "f_ffree", "f_namemax")
        return {name: getattr(info, name) for name in names}


if __name__ == "__main__":
    back, mount, control = sys.argv[1:]
    no_cache = {"attr_timeout": 0, "entry_timeout": 0, "negative_timeout": 0}
    fuse.FUSE(Faulty(back, control), mount, foreground=True, nothreads=False, use_ino=True, **no_cache)
