"""Storage on a local file system: durable writes, exclusive creation, folders published by one rename.

Local disks have no deadline of their own: the kernel answers every call, with an error at the latest. Mounts of other
machines may not, and are opened with deadlines.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from verl_core.config import paths
from verl_core.errors import ConfigError, ObjectExists, StorageError
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import FileStorage, Storage
from verl_core.testing import crash
from verl_core.types import BuildContext, Bytes, Capabilities, ObjectStat

from . import posix


@dataclass
class LocalConfig:
    """The local file system has nothing to set."""


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("local", LocalConfig, build_local)


def build_local(config: LocalConfig, context: BuildContext) -> FileStorage:
    """Open ``context.uri``: an absolute path or ``file:///…``. Nothing is made before the first write.

    On a network file system the calls get deadlines (see ``nfs``).
    """
    path = local_path(context.uri)
    if paths.network_file_system(path) is None:
        return LocalStorage(path)
    from .nfs import NfsConfig, open_nfs

    return open_nfs(path, path, NfsConfig(), context)


def local_path(uri: str) -> str:
    """The path that a path or a ``file://`` URI names, normalized. Raises ``ConfigError``."""
    parts = urlsplit(uri)
    path = uri if uri.startswith("/") else unquote(parts.path)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise ConfigError(
            "not a place on the local file system", where=uri, remedy="give an absolute path or file:///path"
        )
    return os.path.normpath(path)


class LocalStorage:
    """A ``FileStorage`` below one folder. Every error is of the ``StorageError`` tree and names the path."""

    def __init__(self, root: str, named: set[str] | None = None) -> None:
        self.uri = root
        self._named = set() if named is None else named  # folders and logs whose names are known to be durable

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=True, append=True, conditional_put=True, lock=True)

    def portable(self) -> bool:
        return True

    def child(self, prefix: str) -> LocalStorage:
        return LocalStorage(self._at(prefix), self._named)

    # --- objects -----------------------------------------------------------------------------

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        target = self._at(path)
        folder = os.path.dirname(target)
        with posix.mapped(target):
            posix.make_folder(folder, self._named)
            if if_absent and os.path.lexists(target):
                posix.sync_folder(folder)  # whoever made it may have died before its own sync
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            temp = os.path.join(folder, posix.TEMP + secrets.token_hex(8))
            try:
                size = posix.write(temp, data, os.O_CREAT | os.O_EXCL, sync=True)
                crash.point("put.written")
                if if_absent:
                    posix.link_new(temp, target)
                else:
                    posix.effect()
                    os.replace(temp, target)
                crash.point("put.named")
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temp)
            posix.sync_folder(folder)
            crash.point("put.done")
        return size

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        target = self._at(path)
        with posix.mapped(target):
            crash.point("write.begun")
            try:
                return posix.write(target, data, os.O_CREAT | os.O_TRUNC, sync=True)
            except FileNotFoundError:  # the folder; nothing was taken from data yet
                os.makedirs(os.path.dirname(target), exist_ok=True)
                return posix.write(target, data, os.O_CREAT | os.O_TRUNC, sync=True)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        target = self._at(path)
        with posix.mapped(target):
            return posix.read(target, start, end)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        folder = prefix.rstrip("/")
        target = self._at(folder) if folder else self.uri
        with posix.mapped(target):
            yield from posix.walk(target, folder)

    def stat(self, path: str) -> ObjectStat | None:
        target = self._at(path)
        with posix.mapped(target):
            try:
                info = os.stat(target)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return None if modes.S_ISDIR(info.st_mode) else ObjectStat(path, info.st_size, info.st_mtime)

    def delete(self, path: str) -> None:
        target = self._at(path)
        self._forget(target)
        with posix.mapped(target):
            try:
                posix.remove(target)
                posix.sync_folder(os.path.dirname(target))
            except (FileNotFoundError, NotADirectoryError):
                return

    def settle(self, folder: str) -> None:
        target = self._at(folder) if folder else self.uri
        with posix.mapped(target):
            posix.make_folder(os.path.dirname(target), self._named)
            posix.sync_folder(target)

    # --- what only a file system can ---------------------------------------------------------

    def publish(self, staged: str, target: str) -> None:
        source, goal = self._at(staged), self._at(target)
        with posix.mapped(source):
            posix.sync_folders(source)
        crash.point("publish.synced")
        try:
            self._rename(source, goal)  # that the old name is gone need not last: leftovers are swept
        except ObjectExists:
            with posix.mapped(goal):
                posix.sync_folder(os.path.dirname(goal))  # whoever published it may have died before its own sync
            raise
        crash.point("publish.done")

    def move(self, path: str, target: str) -> None:
        source, goal = self._at(path), self._at(target)
        self._forget(source)
        self._rename(source, goal)
        with posix.mapped(source):
            posix.sync_folder(os.path.dirname(source))

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        target = self._at(path)
        with posix.mapped(target):
            new = target not in self._named  # or made by a process that died before its own sync
            if new:
                posix.make_folder(os.path.dirname(target), self._named)
            crash.point("append.begun")
            posix.write(target, data, os.O_CREAT | os.O_APPEND, sync=sync)
            crash.point("append.written")
            if new and sync:
                posix.sync_folder(os.path.dirname(target))
                self._named.add(target)

    def truncate(self, path: str, size: int) -> None:
        target = self._at(path)
        with posix.mapped(target):
            posix.truncate(target, size)

    def lock(self, path: str) -> Callable[[], None] | None:
        target = self._at(path)
        with posix.mapped(target):
            posix.make_folder(os.path.dirname(target), self._named)
            return posix.lock(target)

    def free_bytes(self) -> int:
        folder = self.uri
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        with posix.mapped(folder):
            info = os.statvfs(folder)
        return info.f_bavail * info.f_frsize

    def _rename(self, source: str, goal: str) -> None:
        with posix.mapped(f"{source} → {goal}"):
            posix.make_folder(os.path.dirname(goal), self._named)
            crash.point("move.begun")
            posix.rename_new(source, goal)
            crash.point("move.renamed")
            posix.sync_folder(os.path.dirname(goal))

    def _forget(self, path: str) -> None:
        """What goes may come again, made by somebody else."""
        self._named.difference_update([n for n in list(self._named) if n == path or n.startswith(f"{path}/")])

    def _at(self, path: str) -> str:
        if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise StorageError(f"{path!r} is not a path below this root", where=self.uri)
        return f"{self.uri}/{path}"
