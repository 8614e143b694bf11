"""Fault injectors: a process killed or held at its n-th crash point, and storages whose n-th operation fails."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import StorageError, StorageFull
from ..protocols import FileStorage, Storage
from ..types import Bytes, Capabilities, ObjectStat
from . import crash

T = TypeVar("T")


# --- processes -------------------------------------------------------------------------------


def killed_at(n: int, operation: Callable[[], object]) -> bool:
    """Run ``operation`` in a fork that SIGKILLs itself at the n-th crash point; False when it ended before.

    For processes that have no threads at work. Raises ``AssertionError`` when the operation fails by itself.
    """
    _, status = os.waitpid(_forked(n, signal.SIGKILL, operation), 0)
    return _was_killed(status)


def killed_after(seconds: float, operation: Callable[[], object]) -> bool:
    """The same, killed from outside after a time, wherever it is then."""
    child = _forked(0, signal.SIGKILL, operation)
    until = time.monotonic() + seconds
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(min(0.001, seconds))
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return _was_killed(status)


def _was_killed(status: int) -> bool:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the operation failed by itself, with status {status}"
    return False


@contextmanager
def paused_at(n: int, operation: Callable[[], object]) -> Iterator[bool]:
    """Hold ``operation`` at its n-th crash point while the body of the ``with`` runs, then let it run to its end.

    It runs in a fork, which stops itself; yields False when it ended before that point. For processes that have no
    threads at work. Raises ``AssertionError`` when the operation fails by itself.
    """
    child = _forked(n, signal.SIGSTOP, operation)
    _, status = os.waitpid(child, os.WUNTRACED)
    held = os.WIFSTOPPED(status)
    try:
        yield held
    finally:
        if held:
            os.kill(child, signal.SIGCONT)
            _, status = os.waitpid(child, 0)
    assert status == 0, f"the operation failed by itself, with status {status}"


def _forked(n: int, number: int, operation: Callable[[], object]) -> int:
    """The pid of a fork that runs ``operation`` and sends itself the signal ``number`` at the n-th crash point (0: at
    none)."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        crash.arm(f"*:{n}", number)
        operation()
        code = 0
    except BaseException:  # noqa: BLE001 - border: the fork must never return into its parent's stack
        traceback.print_exc()
    finally:
        os._exit(code)


# --- storages --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Plan:
    """Shared by a storage and its children. Calls of several threads may overlap."""

    fail_at: int
    times: int
    error: type[StorageError]
    lost: bool
    reads: bool
    count: int = 0
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def change(self, where: str, run: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        if not self._due():
            return run()
        if self.lost:
            run()
        elif half is not None:
            half()
        raise self.error("injected", where=where)

    def read(self, where: str, run: Callable[[], T]) -> T:
        if self.reads and self._due():
            raise self.error("injected", where=where)
        return run()

    def _due(self) -> bool:
        with self.mutex:
            self.count += 1
            return self.fail_at <= self.count < self.fail_at + self.times


class FailingObjects:
    """A ``Storage`` whose n-th change raises ``error``, and so do the ``times - 1`` after it.

    ``lost``: the change takes effect, and only its answer is lost. ``reads``: they count and fail like changes.
    Operations are counted over the storage and all its children.
    """

    def __init__(
        self,
        inner: Storage,
        fail_at: int,
        error: type[StorageError] = StorageFull,
        *,
        times: int = 1,
        lost: bool = False,
        reads: bool = False,
    ) -> None:
        self.uri, self._inner = inner.uri, inner
        self._plan = _Plan(fail_at, times, error, lost, reads)

    @property
    def changes(self) -> int:
        """Operations so far."""
        return self._plan.count

    def capabilities(self) -> Capabilities:
        return self._inner.capabilities()

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        return self._plan.change(self._at(path), lambda: self._inner.put(path, data, if_absent=if_absent))

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._plan.read(self._at(path), lambda: self._inner.get(path, start, end))

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        return self._plan.read(self._at(prefix), lambda: self._inner.list(prefix))

    def stat(self, path: str) -> ObjectStat | None:
        return self._plan.read(self._at(path), lambda: self._inner.stat(path))

    def delete(self, path: str) -> None:
        self._plan.change(self._at(path), lambda: self._inner.delete(path))

    def child(self, prefix: str) -> FailingObjects:
        found = copy(self)
        found._inner = self._inner.child(prefix)
        found.uri = found._inner.uri
        return found

    def _at(self, path: str) -> str:
        return f"{self.uri}/{path}"


class FailingStorage(FailingObjects):
    """The same for a ``FileStorage``; a write or an append that fails leaves half of its data."""

    _inner: FileStorage

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        half = whole[: len(whole) // 2]
        return self._plan.change(
            self._at(path), lambda: self._inner.write(path, whole), lambda: self._inner.write(path, half)
        )

    def publish(self, staged: str, target: str) -> None:
        self._plan.change(self._at(target), lambda: self._inner.publish(staged, target))

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        half = bytes(data)[: len(data) // 2]
        self._plan.change(
            self._at(path),
            lambda: self._inner.append(path, data, sync=sync),
            lambda: self._inner.append(path, half, sync=sync),
        )

    def truncate(self, path: str, size: int) -> None:
        self._plan.change(self._at(path), lambda: self._inner.truncate(path, size))

    def move(self, path: str, target: str) -> None:
        self._plan.change(self._at(target), lambda: self._inner.move(path, target))

    def settle(self, folder: str) -> None:
        self._plan.change(self._at(folder), lambda: self._inner.settle(folder))

    def lock(self, path: str) -> Callable[[], None] | None:
        return self._inner.lock(path)

    def free_bytes(self) -> int:
        return self._inner.free_bytes()
