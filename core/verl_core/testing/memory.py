"""Stores in memory, for tests and simulations: ``MemoryObjects`` like an object store, ``MemoryFiles`` like a disk.

All children of one store share its objects. Calls of several threads may overlap. Both keep the contract of
``protocols`` and pass its conformance suite; what a power cut would lose is not modelled (see ``crash_states``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..errors import ObjectExists, ObjectMissing, StorageError
from ..types import Bytes, Capabilities, ObjectStat


@dataclass(slots=True)
class _Shared:
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)  # path → content, time of the last change
    locks: set[str] = field(default_factory=set)
    mutex: threading.RLock = field(default_factory=threading.RLock)


class MemoryObjects:
    """A ``Storage``: create-if-absent, no rename, no append."""

    def __init__(
        self, uri: str = "memory://store", shared: _Shared | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.uri, self._shared, self._clock = uri, shared or _Shared(), clock
        self._root = uri.partition("://")[2].rstrip("/") + "/"

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=False, append=False, conditional_put=True, lock=False)

    def child(self, prefix: str) -> MemoryObjects:
        return type(self)(f"{self.uri}/{prefix}", self._shared, self._clock)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        content, name = _whole(data), self._at(path)
        with self._shared.mutex:
            if if_absent and name in self._shared.objects:
                raise ObjectExists("it is there already", where=f"{self.uri}/{path}")
            self._shared.objects[name] = (content, self._clock())
        return len(content)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._content(path)[start:end]

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        folder = self._at(prefix.rstrip("/")) + "/" if prefix else self._root
        with self._shared.mutex:
            found = sorted((name, *entry) for name, entry in self._shared.objects.items() if name.startswith(folder))
        for name, content, mtime in found:
            yield ObjectStat(name.removeprefix(self._root), len(content), mtime)

    def stat(self, path: str) -> ObjectStat | None:
        entry = self._shared.objects.get(self._at(path))
        return None if entry is None else ObjectStat(path, len(entry[0]), entry[1])

    def delete(self, path: str) -> None:
        name = self._at(path)
        with self._shared.mutex:
            for found in [n for n in self._shared.objects if n == name or n.startswith(f"{name}/")]:
                del self._shared.objects[found]

    def _content(self, path: str) -> bytes:
        entry = self._shared.objects.get(self._at(path))
        if entry is None:
            raise ObjectMissing("no such object", where=f"{self.uri}/{path}")
        return entry[0]

    def _at(self, path: str) -> str:
        if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
            raise StorageError(f"{path!r} is not a path below this root", where=self.uri)
        return self._root + path


class MemoryFiles(MemoryObjects):
    """A ``FileStorage``."""

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=True, append=True, conditional_put=True, lock=True)

    def child(self, prefix: str) -> MemoryFiles:
        return type(self)(f"{self.uri}/{prefix}", self._shared, self._clock)

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        return self.put(path, data)

    def publish(self, staged: str, target: str) -> None:
        self.move(staged, target)

    def move(self, path: str, target: str) -> None:
        source, goal = self._at(path), self._at(target)
        with self._shared.mutex:
            objects = self._shared.objects
            moved = [n for n in objects if n == source or n.startswith(f"{source}/")]
            if not moved:
                raise ObjectMissing("no such file or folder", where=f"{self.uri}/{path}")
            if any(n == goal or n.startswith(f"{goal}/") for n in objects):
                raise ObjectExists("it is there already", where=f"{self.uri}/{target}")
            for name in moved:
                objects[goal + name.removeprefix(source)] = objects.pop(name)

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        name = self._at(path)
        with self._shared.mutex:
            before = self._shared.objects.get(name, (b"", 0.0))[0]
            self._shared.objects[name] = (before + bytes(data), self._clock())

    def truncate(self, path: str, size: int) -> None:
        with self._shared.mutex:
            self._shared.objects[self._at(path)] = (self._content(path)[:size], self._clock())

    def lock(self, path: str) -> Callable[[], None] | None:
        name = self._at(path)
        with self._shared.mutex:
            if name in self._shared.locks:
                return None
            self._shared.locks.add(name)
        return lambda: self._shared.locks.discard(name)

    def free_bytes(self) -> int:
        return 1 << 40


def _whole(data: Bytes | Iterable[Bytes]) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return b"".join(bytes(part) for part in data)
