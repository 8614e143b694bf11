"""Fault injectors: a process killed at its n-th crash point, and a storage whose n-th change fails."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator

from ..errors import StorageError, StorageFull
from ..protocols import FileStorage
from ..types import Bytes, Capabilities, ObjectStat
from . import crash


def killed_at(n: int, operation: Callable[[], object]) -> bool:
    """Run ``operation`` in a fork that SIGKILLs itself at the n-th crash point; False when it ended before.

    For processes that have no threads at work. Raises ``AssertionError`` when the operation fails by itself.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            crash.arm(f"*:{n}")
            operation()
            code = 0
        except BaseException:  # noqa: BLE001 - border: the fork must never return into its parent's stack
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the operation failed by itself, with status {status}"
    return False


class FailingStorage:
    """A ``FileStorage`` whose n-th change raises ``error`` once; a write that fails leaves half of its data."""

    def __init__(self, inner: FileStorage, fail_at: int, error: type[StorageError] = StorageFull) -> None:
        self.uri, self._inner, self._fail_at, self._error = inner.uri, inner, fail_at, error
        self.changes = 0

    def capabilities(self) -> Capabilities:
        return self._inner.capabilities()

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        self._change(path)
        return self._inner.put(path, data, if_absent=if_absent)

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        self._change(path, lambda: self._inner.write(path, whole[: len(whole) // 2]))
        return self._inner.write(path, whole)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.get(path, start, end)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        return self._inner.list(prefix)

    def stat(self, path: str) -> ObjectStat | None:
        return self._inner.stat(path)

    def delete(self, path: str) -> None:
        self._change(path)
        self._inner.delete(path)

    def child(self, prefix: str) -> FailingStorage:
        inner = self._inner.child(prefix)
        assert isinstance(inner, FileStorage)
        return FailingStorage(inner, self._fail_at - self.changes, self._error)

    def publish(self, staged: str, target: str) -> None:
        self._change(target)
        self._inner.publish(staged, target)

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        self._change(path, lambda: self._inner.append(path, data[: len(data) // 2], sync=sync))
        self._inner.append(path, data, sync=sync)

    def truncate(self, path: str, size: int) -> None:
        self._change(path)
        self._inner.truncate(path, size)

    def move(self, path: str, target: str) -> None:
        self._change(target)
        self._inner.move(path, target)

    def lock(self, path: str) -> Callable[[], None] | None:
        return self._inner.lock(path)

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def _change(self, path: str, half: Callable[[], object] | None = None) -> None:
        self.changes += 1
        if self.changes == self._fail_at:
            if half is not None:
                half()
            raise self._error("injected", where=f"{self.uri}/{path}")
