"""The system calls below the local storage, each with its durability and its place for a crash in a test."""

from __future__ import annotations

import errno
import fcntl
import os
import stat as modes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import cast

from verl_core.errors import (
    ObjectExists,
    ObjectMissing,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTimeout,
    StorageUnavailable,
)
from verl_core.testing import crash
from verl_core.types import Bytes, ObjectStat

from . import direct

TEMP = ".tmp-"  # prefix of files that a put has not finished; never listed
_HIDDEN = (TEMP, ".nfs0", ".fuse_hidden")  # the latter: removed, and still open somewhere on this host
_ERRORS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (StorageFull, "make room on this file system"),
    errno.EDQUOT: (StorageFull, "make room within the quota"),
    errno.EROFS: (StorageReadOnly, "mount it for writing"),
    errno.EACCES: (StorageDenied, "check owner and permissions"),
    errno.EPERM: (StorageDenied, "check owner and permissions"),
    errno.ESTALE: (StorageUnavailable, "mount it anew: its server does not know this folder any more"),
    errno.ENOTCONN: (StorageUnavailable, "mount it anew: the server behind it is gone"),
    errno.EHOSTDOWN: (StorageUnavailable, "bring the server of this mount back"),
    errno.EHOSTUNREACH: (StorageUnavailable, "bring the server of this mount back"),
    errno.ETIMEDOUT: (StorageTimeout, "check the server of this mount and the network"),
    errno.ENOENT: (ObjectMissing, ""),
    errno.ENOTDIR: (ObjectMissing, ""),
    errno.EEXIST: (ObjectExists, ""),
    errno.ENOTEMPTY: (ObjectExists, ""),
}


class _Call(threading.local):
    """The call of this thread."""

    given_up: Callable[[], bool] = staticmethod(lambda: False)  # whether nobody waits for it any more


call = _Call()


def effect() -> None:
    """Stands right before what others can see: a call that was given up ends here, however late it wakes up."""
    if call.given_up():
        raise StorageTimeout("the call was given up before it had an effect")


@contextmanager
def mapped(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind, remedy = _ERRORS.get(error.errno or 0, (StorageError, ""))
        raise kind((error.strerror or str(error)).lower(), where=where, remedy=remedy) from error


def write(path: str, data: Bytes | Iterable[Bytes], flags: int, *, sync: bool) -> int:
    """Unbuffered: each system call lets other threads run, so there are as few as can be."""
    parts = cast(Iterable[Bytes], (data,) if isinstance(data, bytes | bytearray | memoryview) else data)
    handle = os.open(path, os.O_WRONLY | flags, 0o666)
    try:
        views, large = direct.large(parts)
        size = direct.write(handle, views, effect) if large and not flags & os.O_APPEND else _write(handle, views)
        if sync and size:  # of an empty file there is only the name, which its folder's sync makes durable
            os.fdatasync(handle)
            crash.point("write.synced")
    finally:
        os.close(handle)
    return size


def _write(handle: int, parts: Iterable[memoryview]) -> int:
    size = 0
    for part in parts:
        left = part
        size += len(left)
        effect()
        while left:
            left = left[os.write(handle, left) :]
        crash.point("write.part")
    return size


def truncate(path: str, size: int) -> None:
    handle = os.open(path, os.O_WRONLY)
    try:
        effect()
        os.ftruncate(handle, size)
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str, start: int, end: int | None) -> bytes:
    handle = os.open(path, os.O_RDONLY)
    try:
        stop = os.fstat(handle).st_size if end is None else end
        parts = []
        while start < stop and (part := os.pread(handle, stop - start, start)):
            parts.append(part)
            start += len(part)
    finally:
        os.close(handle)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def walk(folder: str, prefix: str) -> Iterator[ObjectStat]:
    """Files in the order of their paths; what vanishes meanwhile is left out."""
    try:
        with os.scandir(folder) as entries:
            # "a-b" sorts before "a/b": a folder's name counts with its slash
            found = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entry in found:
        if name.startswith(_HIDDEN):
            continue
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        if name.endswith("/"):
            yield from walk(entry.path, path)
            continue
        with suppress(FileNotFoundError):
            info = entry.stat()
            yield ObjectStat(path, info.st_size, info.st_mtime)


def remove(path: str) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        effect()
        os.unlink(path)
    else:
        with os.scandir(path) as entries:
            children = sorted(entry.path for entry in entries)
        for child in children:
            remove(child)
        effect()
        os.rmdir(path)
    crash.point("delete.removed")


def _sync(path: str, flags: int = 0) -> None:
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: str) -> None:
    _sync(path, os.O_DIRECTORY)


def sync_folders(path: str) -> None:
    """Sync the names in a folder and in all below it; their files were synced as they were written."""
    with os.scandir(path) as entries:
        for name in sorted(entry.path for entry in entries if entry.is_dir()):
            sync_folders(name)
            crash.point("publish.folder")
    sync_folder(path)


def make_folder(path: str, named: set[str]) -> None:
    """Make a folder and its parents, each durable in its own parent. Those in ``named`` are, and it grows.

    A folder that is there may be of a process that died before its own sync: it is synced once.
    """
    there, parent = os.path.isdir(path), os.path.dirname(path)
    if (there and path in named) or path == parent:
        return
    make_folder(parent, named)
    if there:
        with _unsyncable_ignored():
            sync_folder(parent)
    else:
        with suppress(FileExistsError):  # another process was quicker
            os.mkdir(path)
        sync_folder(parent)
    named.add(path)


@contextmanager
def _unsyncable_ignored() -> Iterator[None]:
    """Folders high above ours may be unreadable, or of a kind that cannot be synced; nobody made names there for us."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
            raise


def link_new(source: str, goal: str) -> None:
    """Give a file a second name that must not exist. A lost answer is decided by looking: done is done."""
    effect()
    try:
        os.link(source, goal)
    except OSError:
        if not _is_same(os.stat(source), goal):
            raise


def rename_new(source: str, goal: str) -> None:
    """Rename a file or folder onto a name that must not exist; lost answers are decided by looking."""
    before = os.stat(source)
    if not modes.S_ISDIR(before.st_mode):
        link_new(source, goal)
        os.unlink(source)
        return
    if os.path.lexists(goal):  # a rename onto an empty folder would succeed
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    effect()
    try:
        os.rename(source, goal)
    except OSError:
        if not _is_same(before, goal):
            raise


def _is_same(info: os.stat_result, path: str) -> bool:
    try:
        return os.path.samestat(info, fresh_stat(path))
    except FileNotFoundError:
        return False


def fresh_stat(path: str) -> os.stat_result:
    """Past the caches of a network file system: to open a folder, then what is in it, asks the server."""
    with suppress(OSError):
        os.close(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError:
        return os.stat(path)
    try:
        return os.fstat(handle)
    finally:
        os.close(handle)


def lock(path: str) -> Callable[[], None] | None:
    """An exclusive ``flock`` until released or until this process dies; None when it is held."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    _locks.add(handle)

    def release() -> None:
        if handle in _locks:
            _locks.remove(handle)
            os.close(handle)

    return release


_locks: set[int] = set()


def _forget_locks() -> None:
    for handle in _locks:
        os.close(handle)
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)  # else a forked child would keep its dead parent's locks
