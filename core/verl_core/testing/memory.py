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
class _Node:
    """A name: an object, a folder, or both, as object stores allow it. ``content`` is None where there is no object."""

    content: bytes | bytearray | None = None
    mtime: float = 0.0  # of the last change
    below: dict[str, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Shared:
    root: _Node = field(default_factory=_Node)
    locks: set[str] = field(default_factory=set)
    mutex: threading.RLock = field(default_factory=threading.RLock)


class MemoryObjects:
    """A ``Storage``: create-if-absent, no rename, no append."""

    def __init__(
        self,
        uri: str = "memory://store",
        shared: _Shared | None = None,
        clock: Callable[[], float] = time.time,
        conditional_put: bool = True,
    ) -> None:
        """``conditional_put=False``: a store that takes ``if_absent`` and silently overwrites."""
        self.uri, self._shared, self._clock, self._conditional = uri, shared or _Shared(), clock, conditional_put
        self._root = tuple(uri.partition("://")[2].rstrip("/").split("/"))

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=False, append=False, conditional_put=self._conditional, lock=False)

    def child(self, prefix: str) -> MemoryObjects:
        self._place(prefix)
        return type(self)(f"{self.uri}/{prefix}", self._shared, self._clock, self._conditional)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        content, place = _whole(data), self._place(path)
        with self._shared.mutex:
            node = self._made(place)
            if if_absent and self._conditional and node.content is not None:
                raise ObjectExists("it is there already", where=f"{self.uri}/{path}")
            node.content, node.mtime = content, self._clock()
        return len(content)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with self._shared.mutex:
            content = self._object(path).content or b""
            return bytes(content[start:end])

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        folder = prefix.rstrip("/")
        with self._shared.mutex:
            node = self._node(self._place(folder) if folder else self._root)
            found: list[ObjectStat] = []
            if node is not None:
                _walk(node, f"{folder}/" if folder else "", found)
        yield from found

    def stat(self, path: str) -> ObjectStat | None:
        with self._shared.mutex:
            node = self._node(self._place(path))
            if node is None or node.content is None:
                return None
            return ObjectStat(path, len(node.content), node.mtime)

    def delete(self, path: str) -> None:
        with self._shared.mutex:
            self._taken(self._place(path))

    # --- the tree ----------------------------------------------------------------------------

    def _place(self, path: str) -> tuple[str, ...]:
        parts = path.split("/")
        if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise StorageError(f"{path!r} is not a path below this root", where=self.uri)
        return (*self._root, *parts)

    def _node(self, place: tuple[str, ...]) -> _Node | None:
        node: _Node | None = self._shared.root
        for part in place:
            if node is None:
                return None
            node = node.below.get(part)
        return node

    def _made(self, place: tuple[str, ...]) -> _Node:
        node = self._shared.root
        for part in place:
            node = node.below.setdefault(part, _Node())
        return node

    def _taken(self, place: tuple[str, ...]) -> _Node | None:
        """Cut a node off the tree, with the folders that are empty without it."""
        chain = [self._shared.root]
        for part in place:
            below = chain[-1].below.get(part)
            if below is None:
                return None
            chain.append(below)
        del chain[-2].below[place[-1]]
        for depth in range(len(place) - 1, 0, -1):
            if chain[depth].below or chain[depth].content is not None:
                break
            del chain[depth - 1].below[place[depth - 1]]
        return chain[-1]

    def _object(self, path: str) -> _Node:
        node = self._node(self._place(path))
        if node is None or node.content is None:
            raise ObjectMissing("no such object", where=f"{self.uri}/{path}")
        return node


class MemoryFiles(MemoryObjects):
    """A ``FileStorage``."""

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=True, append=True, conditional_put=True, lock=True)

    def child(self, prefix: str) -> MemoryFiles:
        self._place(prefix)
        return type(self)(f"{self.uri}/{prefix}", self._shared, self._clock)

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        return self.put(path, data)

    def publish(self, staged: str, target: str) -> None:
        self.move(staged, target)

    def move(self, path: str, target: str) -> None:
        source, goal = self._place(path), self._place(target)
        with self._shared.mutex:
            if self._node(source) is None:
                raise ObjectMissing("no such file or folder", where=f"{self.uri}/{path}")
            if self._node(goal) is not None:
                raise ObjectExists("it is there already", where=f"{self.uri}/{target}")
            moved = self._taken(source)
            assert moved is not None
            self._made(goal[:-1]).below[goal[-1]] = moved

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        with self._shared.mutex:
            node = self._made(self._place(path))
            if not isinstance(node.content, bytearray):
                node.content = bytearray(node.content or b"")
            node.content += data
            node.mtime = self._clock()

    def truncate(self, path: str, size: int) -> None:
        with self._shared.mutex:
            node = self._object(path)
            node.content, node.mtime = bytearray(node.content or b"")[:size], self._clock()

    def lock(self, path: str) -> Callable[[], None] | None:
        name = "/".join(self._place(path))
        with self._shared.mutex:
            if name in self._shared.locks:
                return None
            self._shared.locks.add(name)
        return lambda: self._shared.locks.discard(name)

    def settle(self, folder: str) -> None: ...

    def free_bytes(self) -> int:
        return 1 << 40


def _walk(node: _Node, prefix: str, found: list[ObjectStat]) -> None:
    """All objects below a node in the order of their paths: "a-b" sorts before "a/b"."""
    names = [(name, child) for name, child in node.below.items() if child.content is not None]
    names += [(f"{name}/", child) for name, child in node.below.items() if child.below]
    for name, child in sorted(names, key=lambda entry: entry[0]):
        if name.endswith("/"):
            _walk(child, prefix + name, found)
        elif child.content is not None:
            found.append(ObjectStat(prefix + name, len(child.content), child.mtime))


def _whole(data: Bytes | Iterable[Bytes]) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return b"".join(bytes(part) for part in data)
