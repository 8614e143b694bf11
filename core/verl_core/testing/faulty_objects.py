"""Fault injectors for any ``Storage``: answers that are lost, calls that land late, deaths, and actors that take turns.

``Watched`` puts one function around every operation of a store and of its children; the others are such functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..errors import StorageError, StorageTimeout
from ..protocols import Storage
from ..types import Bytes, Capabilities, ObjectStat

T = TypeVar("T")
R = TypeVar("R")
PATIENCE_S = 20.0  # for an actor to come to its next operation


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # put | get | list | stat | delete
    where: str  # URI of the object

    @property
    def changes(self) -> bool:
        return self.name in ("put", "delete")


class Around(Protocol):
    """Carries out an operation, or does not."""

    def __call__(self, operation: Operation, call: Callable[[], T], /) -> T: ...


class Watched:
    """A ``Storage`` with a function around each operation. What is put is read to its end before."""

    def __init__(self, inner: Storage, around: Around) -> None:
        self.uri, self._inner, self.around = inner.uri, inner, around

    def capabilities(self) -> Capabilities:
        return self._inner.capabilities()

    def child(self, prefix: str) -> Watched:
        return Watched(self._inner.child(prefix), self.around)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(map(bytes, data))
        return self.around(self._named("put", path), lambda: self._inner.put(path, whole, if_absent=if_absent))

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self.around(self._named("get", path), lambda: self._inner.get(path, start, end))

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        yield from self.around(self._named("list", prefix), lambda: [*self._inner.list(prefix)])

    def stat(self, path: str) -> ObjectStat | None:
        return self.around(self._named("stat", path), lambda: self._inner.stat(path))

    def delete(self, path: str) -> None:
        self.around(self._named("delete", path), lambda: self._inner.delete(path))

    def _named(self, name: str, path: str) -> Operation:
        return Operation(name, f"{self.uri}/{path}")


# --- faults ----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing in it may handle this."""


class LostAnswer:
    """The n-th change raises ``StorageTimeout``. It never lands, it has ``landed``, or it lands ``late``, so many
    operations after."""

    def __init__(self, n: int, *, landed: bool = False, late: int | None = None) -> None:
        self._n, self._landed, self._late = n, landed, late
        self._pending: Callable[[], object] | None = None
        self._wait = 0
        self.changes = 0  # seen so far
        self._mutex = threading.RLock()

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
        with self._mutex:
            self._land()
            if not operation.changes:
                return call()
            self.changes += 1
            if self.changes != self._n:
                return call()
            if self._landed:
                call()
            elif self._late is not None:
                self._pending, self._wait = call, self._late
            raise StorageTimeout("no answer (injected)", where=operation.where)

    def _land(self) -> None:
        if self._pending is not None and self._wait <= 0:
            pending, self._pending = self._pending, None
            try:
                pending()
            except StorageError:
                return  # nobody hears how a call ended that was given up
        self._wait -= 1


class Death:
    """The process dies at its n-th operation, before or ``after`` it took effect; whatever it does then is undone by
    that: it raises ``Killed``."""

    def __init__(self, n: int, *, after: bool = False) -> None:
        self._n, self._after = n, after
        self.operations = 0  # seen so far
        self._mutex = threading.RLock()

    @property
    def happened(self) -> bool:
        return self.operations >= self._n

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
        with self._mutex:
            self.operations += 1
            if self.operations == self._n and self._after:
                call()
            if self.operations >= self._n:
                raise Killed(operation.where)
            return call()


class Puppet(Generic[T]):
    """An actor that stops before each of its storage operations until it is let go on.

    Two of them on one store interleave as a test says; one that is never let go on is a frozen process. The actor may
    have threads of its own.
    """

    def __init__(self, storage: Storage, act: Callable[[Storage], T]) -> None:
        self.at: Operation | None = None  # the newest operation that it came to
        self._changed = threading.Condition()
        self._passed = self._allowed = self._inside = self._waiting = 0
        self._free = self._done = False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._act, args=(act, Watched(storage, self._gate)), daemon=True)
        self._thread.start()

    def go(self, operations: int) -> bool:
        """Let so many operations pass; True when the actor came to its end."""
        with self._changed:
            self._allowed = self._passed + operations
            self._changed.notify_all()
            assert self._changed.wait_for(self._stands, PATIENCE_S), "the actor neither ended nor came to an operation"
            return self._done

    def end(self) -> T:
        """Let it run to its end; its result, or what it raised."""
        with self._changed:
            self._free = True
            self._changed.notify_all()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the actor did not come to its end"
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _stands(self) -> bool:
        return self._done or (self._passed == self._allowed and not self._inside and self._waiting > 0)

    def _gate(self, operation: Operation, call: Callable[[], R]) -> R:
        with self._changed:
            self._waiting += 1
            self.at = operation
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._free or self._passed < self._allowed)
            self._waiting -= 1
            self._passed += 1
            self._inside += 1
        try:
            return call()
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _act(self, act: Callable[[Storage], T], storage: Storage) -> None:
        try:
            self._result.append(act(storage))
        except BaseException as error:  # noqa: BLE001 - border: handed to the test by end()
            self._error = error
        with self._changed:
            self._done = True
            self._changed.notify_all()
