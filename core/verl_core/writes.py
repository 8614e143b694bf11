"""One writer thread behind all durable writes of a controller: tasks run in the order in which they were handed in.

So a journal line never becomes durable before the data that it speaks of, and training pays only for handing over.
Lines for one file that wait together are written by one append and one sync. A task that fails on storage is tried
again until ``patience_s`` has passed; then the queue is broken for good: nothing that came later is written, and
``check`` raises.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from .errors import (
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageThrottled,
    StorageTimeout,
    StorageUnavailable,
)

TRANSIENT = (
    StorageFull, StorageReadOnly, StorageTimeout, StorageDenied, StorageUnavailable, StorageThrottled, StorageConflict
)  # fmt: skip
DOWN = (StorageTimeout, StorageUnavailable, StorageThrottled)  # nothing is wrong with what was asked for

_NICE = 5
_SLACK_S = 600.0  # beyond the patience for failures: as long as one large save may take


def give_way() -> None:
    """The calling thread interrupts none that trains, and gets a quarter of a processor that it shares. Linux only."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + _NICE, 19))


class LineSink(Protocol):
    """Where lines go. ``write`` makes them durable, or raises and leaves the sink fit for the same call again."""

    def write(self, lines: bytes) -> None: ...


class Writes(Protocol):
    """Durable writes in the order in which they were handed in; see ``WriteQueue``, which does them on a thread."""

    def line(self, sink: LineSink, line: bytes) -> None: ...
    def submit(self, run: Callable[[], object]) -> None: ...
    def barrier(self, timeout_s: float = 600.0) -> None: ...
    def check(self) -> None: ...
    def close(self, timeout_s: float = 600.0) -> None: ...


@dataclass(slots=True)
class _Task:
    run: Callable[[], object] | None
    sink: LineSink | None = None
    line: bytes = b""
    done: threading.Event = field(default_factory=threading.Event)


class WriteQueue:
    """See the module. ``limit`` bounds the tasks that wait; a full queue blocks the caller (back-pressure)."""

    def __init__(
        self,
        *,
        patience_s: float,
        limit: int = 256,
        on_wait: Callable[[StorageError], None] | None = None,
    ) -> None:
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._limit, self._patience_s, self._on_wait = limit, patience_s, on_wait
        self._error: BaseException | None = None
        self._closing = False
        self.line_latency_s = 0.0  # of the newest group of lines
        self._thread = threading.Thread(target=self._work, name="verl-writes", daemon=True)
        self._thread.start()

    def line(self, sink: LineSink, line: bytes) -> None:
        """Append one line, after everything that was handed in before."""
        self._put(_Task(None, sink, line))

    def submit(self, run: Callable[[], object]) -> None:
        """Run ``run`` on the writer thread, after everything that was handed in before."""
        self._put(_Task(run))

    def barrier(self, timeout_s: float = 600.0) -> None:
        """Wait until everything handed in so far is durable. Raises what ``check`` raises, or StorageTimeout."""
        task = _Task(None)
        self._put(task)
        if not task.done.wait(timeout_s):
            raise StorageTimeout(f"writes did not finish within {timeout_s:.0f} s", remedy="check the storage")
        self.check()

    def check(self) -> None:
        """Raise the error that broke the queue, if any."""
        if self._error is not None:
            raise self._error

    def close(self, timeout_s: float = 600.0) -> None:
        """Write what is waiting, then end the thread. Raises like ``barrier``."""
        if self._closing:
            return
        try:
            self.barrier(timeout_s)
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join(5)

    def _put(self, task: _Task) -> None:
        with self._changed:
            until = time.monotonic() + self._patience_s + _SLACK_S
            while len(self._tasks) >= self._limit and self._error is None:
                if not self._changed.wait(max(until - time.monotonic(), 0.0)):  # a call to storage that never returns
                    waited = f"{len(self._tasks)} writes wait, none was done for {self._patience_s + _SLACK_S:.0f} s"
                    raise StorageTimeout(waited, remedy="check the storage; the run goes on when started again")
            self.check()
            self._tasks.append(task)
            self._changed.notify_all()

    def _take(self) -> list[_Task]:
        """The next task, with all lines for the same sink that wait right behind it; empty at the end."""
        with self._changed:
            while not self._tasks and not self._closing:
                self._changed.wait()
            group = [self._tasks.popleft()] if self._tasks else []
            while group and group[0].sink and self._tasks and self._tasks[0].sink is group[0].sink:
                group.append(self._tasks.popleft())
            self._changed.notify_all()
            return group

    def _work(self) -> None:
        give_way()
        while group := self._take():
            if self._error is None:
                try:
                    self._run_patiently(group)
                except BaseException as error:  # noqa: BLE001 - border: handed to the controller by check()
                    self._error = error
            for task in group:
                task.done.set()

    def _run_patiently(self, group: list[_Task]) -> None:
        for attempt in Retrying(
            retry=retry_if_exception_type(TRANSIENT),
            stop=stop_after_delay(self._patience_s),
            wait=wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.1),
            before_sleep=self._tell,
            reraise=True,
        ):
            with attempt:
                self._run(group)

    def _run(self, group: list[_Task]) -> None:
        first = group[0]
        if first.run is not None:
            first.run()
        elif first.sink is not None:
            begin = time.monotonic()
            first.sink.write(b"".join(task.line for task in group))
            self.line_latency_s = time.monotonic() - begin

    def _tell(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if self._on_wait is not None and isinstance(error, StorageError):
            self._on_wait(error)
