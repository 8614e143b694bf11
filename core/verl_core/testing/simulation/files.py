"""The store as one controller sees it: it has outages, and nothing that a dead controller does reaches it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...errors import StorageTimeout
from ...protocols import FileStorage
from ...types import Bytes, Capabilities, ObjectStat
from .clock import Clock


@dataclass(slots=True)
class Outage:
    """``until``: monotonic seconds before which no change is answered; every second one lands all the same."""

    until: float = 0.0
    changes: int = 0


class AttemptFiles:
    """A ``FileStorage``. During an outage a change raises ``StorageTimeout``, whether or not it landed."""

    def __init__(self, inner: FileStorage, outage: Outage, clock: Clock, alive: Callable[[], bool]) -> None:
        self.uri, self._inner, self._outage, self._clock, self._alive = inner.uri, inner, outage, clock, alive

    def capabilities(self) -> Capabilities:
        return self._inner.capabilities()

    def child(self, prefix: str) -> AttemptFiles:
        inner = self._inner.child(prefix)
        assert isinstance(inner, FileStorage)
        return AttemptFiles(inner, self._outage, self._clock, self._alive)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.get(path, start, end)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        return self._inner.list(prefix)

    def stat(self, path: str) -> ObjectStat | None:
        return self._inner.stat(path)

    def settle(self, folder: str) -> None:
        self._inner.settle(folder)

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def lock(self, path: str) -> Callable[[], None] | None:
        return self._inner.lock(path)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        content = data if isinstance(data, bytes | bytearray | memoryview) else b"".join(map(bytes, data))
        self._change(path, lambda: self._inner.put(path, content, if_absent=if_absent))
        return len(content)

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        return self.put(path, data)

    def delete(self, path: str) -> None:
        self._change(path, lambda: self._inner.delete(path))

    def publish(self, staged: str, target: str) -> None:
        self._change(target, lambda: self._inner.publish(staged, target))

    def move(self, path: str, target: str) -> None:
        self._change(target, lambda: self._inner.move(path, target))

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        self._change(path, lambda: self._inner.append(path, data, sync=sync))

    def truncate(self, path: str, size: int) -> None:
        self._change(path, lambda: self._inner.truncate(path, size))

    def _change(self, path: str, change: Callable[[], object]) -> None:
        if not self._alive():
            return
        if self._clock.now() < self._outage.until:
            self._outage.changes += 1
            if self._outage.changes % 2:
                change()
            raise StorageTimeout("no answer", where=f"{self.uri}/{path}", remedy="wait for the store")
        change()
