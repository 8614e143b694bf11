"""Records what a program does to the files below one folder, in the order in which the kernel was asked.

``record`` puts itself between the program and the functions of ``os`` that change files, and writes down each call
that succeeded: creations, writes, syncs, renames, removals. ``crash_states`` says what a power cut may leave of them.
Between them stand the promises that the program made ("this batch is committed"): a checker must find them kept.

Seen is what goes through ``os.<function>``, as the local storage does. What went another way shows when the tree that
the operations lead to is held against the one on disk (``trees.tree_of``). Locks die with their process and are not
recorded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# --- operations ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A handle on a file or folder. ``made``: the call created the file; ``emptied``: it cut it to nothing."""

    handle: int  # unique in a recording, unlike the kernel's
    path: str
    made: bool = False
    emptied: bool = False


@dataclass(frozen=True, slots=True)
class Wrote:
    handle: int
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    handle: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """``fsync`` or ``fdatasync``: of a file its content, of a folder the names in it."""

    handle: int


@dataclass(frozen=True, slots=True)
class MadeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Renamed:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Linked:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A name of a file, or an empty folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Promised:
    """From here on ``kind``, ``name`` must be found as ``value``; an empty value takes the promise back."""

    kind: str
    name: str
    value: str


Operation = Opened | Wrote | Resized | Synced | MadeFolder | Renamed | Linked | Removed | Promised


# --- recording -------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is dead: nothing that it does reaches the kernel any more."""


_UNSEEN = (
    "truncate",
    "pwrite",
    "writev",
    "pwritev",
    "symlink",
    "mknod",
    "sendfile",
    "copy_file_range",
    "posix_fallocate",
)


class Recording:
    """What was done so far. Calls of several threads are put in one order."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.operations: list[Operation] = []
        self._os = {name: getattr(os, name) for name in (*self._seen(), *_UNSEEN)}
        self._handles: dict[int, int] = {}  # the kernel's → ours
        self._opened = 0
        self._left: int | None = None  # changes until the process dies
        self._mutex = threading.RLock()

    def promise(self, kind: str, name: str, value: str) -> None:
        """See ``Promised``."""
        with self._mutex:
            self.operations.append(Promised(kind, name, value))

    def kill_before(self, change: int) -> None:
        """Let the process die before its n-th change from here on, counted from 1: that call, and every later one,
        raises ``Killed``; only closing works. Syncs count, since it matters whether they were reached."""
        self._left = change

    def revive(self) -> None:
        """What comes now is another process, on the same kernel."""
        self._left = None

    # --- in the place of os.* ------------------------------------------------------------------

    def _seen(self) -> dict[str, Callable[..., Any]]:
        return {
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "ftruncate": self._ftruncate,
            "fsync": self._fsync,
            "fdatasync": self._fdatasync,
            "mkdir": self._mkdir,
            "rename": self._rename,
            "replace": self._replace,
            "link": self._link,
            "unlink": self._unlink,
            "remove": self._unlink,
            "rmdir": self._rmdir,
        }

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self._inside(path, dir_fd)
        if name is None:
            return int(self._os["open"](path, flags, mode, dir_fd=dir_fd))
        made = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        emptied = bool(flags & os.O_TRUNC) and not made
        with self._mutex:
            if made or emptied:
                self._live()
            handle = int(self._os["open"](path, flags, mode))
            self._opened += 1
            self._handles[handle] = self._opened
            self.operations.append(Opened(self._opened, name, made, emptied))
        return handle

    def _close(self, handle: int) -> None:
        with self._mutex:
            self._handles.pop(handle, None)
            self._os["close"](handle)

    def _write(self, handle: int, data: Any) -> int:
        with self._mutex:
            if handle not in self._handles:
                return int(self._os["write"](handle, data))
            self._live()
            size = int(self._os["write"](handle, data))
            end = os.lseek(handle, 0, os.SEEK_CUR)  # a handle that appends stands behind its data, too
            self.operations.append(Wrote(self._handles[handle], end - size, bytes(memoryview(data)[:size])))
        return size

    def _ftruncate(self, handle: int, size: int) -> None:
        self._on_handle("ftruncate", handle, lambda own: Resized(own, size), size)

    def _fsync(self, handle: int) -> None:
        self._on_handle("fsync", handle, Synced)

    def _fdatasync(self, handle: int) -> None:
        self._on_handle("fdatasync", handle, Synced)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._on_path("mkdir", path, dir_fd, MadeFolder, mode)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._on_path("unlink", path, dir_fd, Removed)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._on_path("rmdir", path, dir_fd, Removed)

    def _rename(self, path: Any, target: Any, **more: Any) -> None:
        self._on_paths("rename", path, target, Renamed, **more)

    def _replace(self, path: Any, target: Any, **more: Any) -> None:
        self._on_paths("replace", path, target, Renamed, **more)

    def _link(self, path: Any, target: Any, **more: Any) -> None:
        self._on_paths("link", path, target, Linked, **more)

    # --- steps -------------------------------------------------------------------------------

    def _on_handle(self, name: str, handle: int, record: Callable[[int], Operation], *rest: Any) -> None:
        with self._mutex:
            if handle not in self._handles:
                self._os[name](handle, *rest)
                return
            self._live()
            self._os[name](handle, *rest)
            self.operations.append(record(self._handles[handle]))

    def _on_path(self, name: str, path: Any, dir_fd: int | None, record: type[Any], *rest: Any) -> None:
        inside = self._inside(path, dir_fd)
        with self._mutex:
            if inside is None:
                self._os[name](path, *rest, dir_fd=dir_fd)
                return
            self._live()
            self._os[name](path, *rest)
            self.operations.append(record(inside))

    def _on_paths(self, name: str, path: Any, target: Any, record: type[Any], **more: Any) -> None:
        inside, goal = self._inside(path, more.get("src_dir_fd")), self._inside(target, more.get("dst_dir_fd"))
        with self._mutex:
            if inside is None and goal is None:
                self._os[name](path, target, **more)
                return
            if inside is None or goal is None:
                raise NotImplementedError(f"{name} across the recorded folder: {path} → {target}")
            self._live()
            self._os[name](path, target, **more)
            self.operations.append(record(inside, goal))

    def _unseen(self, name: str) -> Callable[..., Any]:
        def refuse(*given: Any, **more: Any) -> Any:
            ours = (v in self._handles if isinstance(v, int) else self._names(v) for v in given[:2])
            if any(ours):
                raise NotImplementedError(f"os.{name} is not recorded")
            return self._os[name](*given, **more)

        return refuse

    def _live(self) -> None:
        """Count a change, and die when it is the one."""
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise Killed

    def _names(self, value: Any) -> bool:
        return isinstance(value, str | bytes | os.PathLike) and self._inside(value, None) is not None

    def _inside(self, path: Any, dir_fd: int | None) -> str | None:
        """The path below the root, "" for the root itself; None elsewhere."""
        if isinstance(path, int) or dir_fd is not None:
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full == self.root:
            return ""
        return full[len(self.root) + 1 :] if full.startswith(self.root + "/") else None


@contextmanager
def record(root: str) -> Iterator[Recording]:
    """Record what this process does below ``root``, a folder that is there, until the end of the ``with``."""
    recording = Recording(root)
    replaced = {**recording._seen(), **{name: recording._unseen(name) for name in _UNSEEN}}
    before = {name: getattr(os, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(os, name, function)
        yield recording
    finally:
        for name, function in before.items():
            setattr(os, name, function)


@contextmanager
def without_syncs() -> Iterator[None]:
    """Syncs that cost nothing, for folders that no power cut will meet."""
    before = os.fsync, os.fdatasync
    os.fsync = os.fdatasync = lambda fd: None
    try:
        yield
    finally:
        os.fsync, os.fdatasync = before
