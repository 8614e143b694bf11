"""The local storage on a network file system: every call has a deadline that holds, and asks the server afresh.

A call runs in a thread of its own, which is left behind when the mount does not answer; when that thread wakes up
later, it stops before its next effect. What is different from a local disk:

- **Caches.** A client may show names and sizes that are a minute old. Opening a folder or a file asks the server
  (close-to-open), so that is done before a name is said to be missing, and for every ``stat``.
- **Lost answers.** A rename or link that is repeated by the client fails though it was done: the inode decides.
- **No trust in locks, none in appends.** ``flock`` may hold on one host alone, and two hosts that append overwrite
  each other, so ``capabilities`` offers neither: who needs a fence creates names, which the server gives once.
"""

from __future__ import annotations

import errno
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed
from verl_core.errors import ObjectExists, ObjectMissing, StorageUnavailable
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Storage
from verl_core.types import BuildContext, Bytes, Capabilities, ObjectStat

from . import posix
from .deadline import MIB, Call, Deadline, Limits, Waiter
from .local import LocalStorage, local_path
from .threads import Threads

T = TypeVar("T")
_REMEDY = "check the mount and its server (`stat` in a shell hangs as well); -o soft or a remount frees what is stuck"
_STALE_TRIES = 3


@dataclass
class NfsConfig:
    """Keys of the ``storage`` block."""

    timeout_s: float = 60.0  # of a call, beside what its bytes need at min_mib_per_s
    alert_after_s: float = 3.0  # a call without progress for so long raises an alert
    min_mib_per_s: float = 1.0
    max_stuck_calls: int = 64  # calls of this process that may be under way or left behind


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("nfs", NfsConfig, build_nfs)


def build_nfs(config: NfsConfig, context: BuildContext) -> NfsStorage:
    """Open ``nfs:///mount/folder``, or an absolute path."""
    path = local_path(context.uri.removeprefix("nfs://"))
    return open_nfs(f"nfs://{path}" if context.uri.startswith("nfs://") else path, path, config, context)


def open_nfs(uri: str, path: str, config: NfsConfig, context: BuildContext) -> NfsStorage:
    """The storage at a normalized path; ``uri`` is what it is called."""
    limits = Limits(config.timeout_s, 1, config.alert_after_s, config.min_mib_per_s * MIB)
    threads = Threads(config.max_stuck_calls)
    return NfsStorage(uri, _Fresh(path), threads, Waiter(limits, context.on_wait))


class _Fresh(LocalStorage):
    """The calls as they run in their threads."""

    def child(self, prefix: str) -> _Fresh:
        return _Fresh(self._at(prefix), self._named)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._patiently(path, lambda: super(_Fresh, self).get(path, start, end))

    def stat(self, path: str) -> ObjectStat | None:
        def look() -> ObjectStat:
            target = self._at(path)
            with posix.mapped(target):
                info = posix.fresh_stat(target)
            if modes.S_ISDIR(info.st_mode):
                raise ObjectMissing("it is a folder", where=target)
            return ObjectStat(path, info.st_size, info.st_mtime)

        try:
            return self._patiently(path, look)
        except ObjectMissing:
            return None

    def delete(self, path: str) -> None:
        for attempt in Retrying(  # a file that is still open on this host keeps its folder for a moment
            retry=retry_if_exception_type(ObjectExists), stop=stop_after_attempt(6), wait=wait_fixed(0.1), reraise=True
        ):
            with attempt:
                super().delete(path)

    def _patiently(self, path: str, look: Callable[[], T]) -> T:
        """Again when a file was replaced under its handle; and once more, from the root down, when it is missing."""
        for _ in range(_STALE_TRIES):
            try:
                return look()
            except ObjectMissing:
                self._refresh(path)
                return look()
            except StorageUnavailable as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ESTALE:
                    raise
        return look()

    def _refresh(self, path: str) -> None:
        """Open every folder on the way: a name that is known to be missing is looked up again."""
        folder = self.uri
        for part in ("", *path.split("/")[:-1]):
            folder = os.path.join(folder, part)
            try:
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
            except OSError:
                return


class NfsStorage:
    """A ``FileStorage`` on a mount that may hang."""

    def __init__(self, uri: str, inner: _Fresh, threads: Threads, waiter: Waiter) -> None:
        self.uri, self._inner, self._threads, self._waiter = uri, inner, threads, waiter

    def capabilities(self) -> Capabilities:
        """``lock`` and ``append`` are there, for one host; nothing may depend on them."""
        return Capabilities(publish=True, append=False, conditional_put=True, lock=False)

    def child(self, prefix: str) -> NfsStorage:
        return NfsStorage(f"{self.uri}/{prefix}", self._inner.child(prefix), self._threads, self._waiter)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        return self._run("put", path, lambda d: self._inner.put(path, _carried(data, d), if_absent=if_absent))

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        return self._run("write", path, lambda d: self._inner.write(path, _carried(data, d)))

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        def read(deadline: Deadline) -> bytes:
            stat = self._inner.stat(path)
            size = stat.size if stat is not None else 0
            wanted = max(0, (size if end is None else min(end, size)) - start)
            deadline.carry(wanted)
            deadline.progress(wanted)
            return self._inner.get(path, start, end)

        return self._run("get", path, read)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Sizes of files that another host is appending to may be old; names are not."""
        return iter(self._run("list", prefix, lambda d: [*_progressing(self._inner.list(prefix), d)]))

    def stat(self, path: str) -> ObjectStat | None:
        return self._run("stat", path, lambda _: self._inner.stat(path))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda _: self._inner.delete(path))

    def publish(self, staged: str, target: str) -> None:
        self._run("publish", target, lambda _: self._inner.publish(staged, target))

    def settle(self, folder: str) -> None:
        self._run("settle", folder, lambda _: self._inner.settle(folder))

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        self._run("append", path, lambda _: self._inner.append(path, data, sync=sync))

    def truncate(self, path: str, size: int) -> None:
        self._run("truncate", path, lambda _: self._inner.truncate(path, size))

    def move(self, path: str, target: str) -> None:
        self._run("move", path, lambda _: self._inner.move(path, target))

    def lock(self, path: str) -> Callable[[], None] | None:
        """For one host: another may get the same lock at the same time."""

        def take(_: Deadline) -> Callable[[], None] | None:
            release = self._inner.lock(path)
            if release is not None and self._given_up():
                release()
            return release

        return self._run("lock", path, take)

    def free_bytes(self) -> int:
        return self._run("free_bytes", "", lambda _: self._inner.free_bytes())

    def _run(self, operation: str, path: str, run: Callable[[Deadline], T]) -> T:
        call = Call(operation, f"{self.uri}/{path}" if path else self.uri, _REMEDY)
        deadline = Deadline(self._waiter.limits)

        def work() -> T:
            posix.call.given_up = self._given_up
            return run(deadline)

        return self._waiter.wait(self._threads.start(work, call.where), call, deadline)

    def _given_up(self) -> bool:
        job = self._threads.current()
        return job is not None and job.abandoned


def _carried(data: Bytes | Iterable[Bytes], deadline: Deadline) -> Iterator[Bytes]:
    """The data, each piece with the time that it needs; none any more once the call was given up."""
    total = 0
    for piece in [data] if isinstance(data, bytes | bytearray | memoryview) else data:
        posix.effect()
        view = memoryview(piece).cast("B")
        deadline.carry(len(view))
        deadline.progress(len(view))
        total += len(view)
        yield view
    deadline.progress(total)  # now it is synced


def _progressing(found: Iterator[ObjectStat], deadline: Deadline) -> Iterator[ObjectStat]:
    """A long listing that moves is not stuck."""
    for stat in found:
        deadline.progress()
        yield stat
