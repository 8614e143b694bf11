"""The controller's durable writes in virtual time: what was not written when it is killed is lost, as with a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from ...errors import StorageError, StorageTimeout
from ...writes import TRANSIENT, LineSink
from .clock import Clock

RETRY_S = 1.0


class SimulatedWrites:
    """A ``Writes``. Each write takes ``seconds``; lines for one sink that wait together are one write."""

    def __init__(self, clock: Clock, seconds: float, patience_s: float) -> None:
        self._clock, self._seconds, self._patience_s = clock, seconds, patience_s
        self._tasks: deque[tuple[Callable[[], object], LineSink | None, bytes]] = deque()
        self._error: StorageError | None = None
        self._busy, self._dead = False, False
        self._failing_since: float | None = None

    def line(self, sink: LineSink, line: bytes) -> None:
        self.check()
        self._put((_nothing, sink, line))

    def submit(self, run: Callable[[], object]) -> None:
        self.check()
        self._put((run, None, b""))

    def barrier(self, timeout_s: float = 600.0) -> None:
        until = self._clock.now() + timeout_s
        while self._tasks and self._error is None:
            if not self._clock.step(until):
                raise StorageTimeout(f"writes did not finish within {timeout_s:.0f} s", remedy="check the storage")
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self, timeout_s: float = 600.0) -> None:
        self.barrier(timeout_s)

    def die(self) -> None:
        """The process is gone, with everything that it had not written."""
        self._dead = True
        self._tasks.clear()

    def _put(self, task: tuple[Callable[[], object], LineSink | None, bytes]) -> None:
        if self._dead:
            return
        self._tasks.append(task)
        if not self._busy:
            self._busy = True
            self._clock.after(self._seconds, self._write)

    def _write(self) -> None:
        self._busy = False
        if self._dead or not self._tasks:
            return
        count = self._group()
        try:
            run, sink, _ = self._tasks[0]
            if sink is None:
                run()
            else:
                sink.write(b"".join(line for _, _, line in islice(self._tasks, count)))
        except TRANSIENT as error:
            return self._try_again(error)
        self._failing_since = None
        for _ in range(count):
            self._tasks.popleft()
        if self._tasks:
            self._busy = True
            self._clock.after(self._seconds, self._write)

    def _group(self) -> int:
        """How many tasks at the head are lines for one sink."""
        sink, count = self._tasks[0][1], 1
        if sink is not None:
            for task in islice(self._tasks, 1, None):
                if task[1] is not sink:
                    break
                count += 1
        return count

    def _try_again(self, error: StorageError) -> None:
        now = self._clock.now()
        since = self._failing_since = now if self._failing_since is None else self._failing_since
        if now - since >= self._patience_s:
            self._error = error
            self._tasks.clear()
        else:
            self._busy = True
            self._clock.after(RETRY_S, self._write)


def _nothing() -> None:
    return None
