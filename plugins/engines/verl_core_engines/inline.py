"""Cluster ``inline``: every worker is a thread of the one process, so weights and batches change hands in memory."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from verl_core.errors import WorkerLost
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Cluster, Worker
from verl_core.types import BuildContext, Reply, WorkerId


@dataclass
class InlineConfig:
    """No options."""


@dataclass(frozen=True, slots=True)
class _Call:
    number: int
    method: str
    argument: object


class _Thread:
    """One worker. A killed one may still be busy: it is left alone, and what it says is not heard."""

    def __init__(
        self, worker: WorkerId, factory: Callable[[], Worker], replies: queue.SimpleQueue[tuple[_Thread, Reply]]
    ) -> None:
        self.inbox: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._worker, self._factory, self._replies = worker, factory, replies
        self.thread = threading.Thread(target=self._work, name=f"verl-{worker}", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Begin nothing more; what is under way cannot be stopped."""
        with suppress(queue.Empty):
            while True:
                self.inbox.get_nowait()
        self.inbox.put(None)

    def _work(self) -> None:
        hosted: Worker | None = None
        while (call := self.inbox.get()) is not None:
            try:
                hosted = hosted or self._factory()
                reply = Reply(call.number, self._worker, hosted.call(call.method, call.argument))
            except BaseException as error:  # noqa: BLE001 - border: the caller is told
                reply = Reply(call.number, self._worker, error=error)
            self._replies.put((self, reply))
        if hosted is not None:
            hosted.close()


class InlineCluster:
    def __init__(self) -> None:
        self._replies: queue.SimpleQueue[tuple[_Thread, Reply]] = queue.SimpleQueue()
        self._threads: dict[WorkerId, _Thread] = {}
        self._numbers = itertools.count(1)

    def spawn(self, worker: WorkerId, factory: Callable[[], Worker]) -> None:
        self.kill(worker)
        self._threads[worker] = _Thread(worker, factory, self._replies)

    def submit(self, worker: WorkerId, method: str, argument: object) -> int:
        thread = self._threads.get(worker)
        if thread is None:
            raise WorkerLost("no such worker", where=str(worker))
        number = next(self._numbers)
        thread.inbox.put(_Call(number, method, argument))
        return number

    def poll(self, timeout_s: float) -> Reply | None:
        deadline = self.now() + timeout_s
        while True:
            try:
                thread, reply = self._replies.get(timeout=max(0.0, min(deadline - self.now(), 3600.0)))
            except queue.Empty:
                return None
            if self._threads.get(reply.worker) is thread:
                return reply

    def alive(self) -> Sequence[WorkerId]:
        return list(self._threads)

    def kill(self, worker: WorkerId) -> None:
        thread = self._threads.pop(worker, None)
        if thread is not None:
            thread.end()

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def close(self) -> None:
        """Let idle workers close; one that is stuck is left behind with the process."""
        threads = list(self._threads.values())
        for worker in list(self._threads):
            self.kill(worker)
        for thread in threads:
            thread.thread.join(timeout=2)


def build_inline(config: InlineConfig, context: BuildContext) -> Cluster:
    return InlineCluster()


@hookimpl
def register_clusters(register: Register[Cluster]) -> None:
    register("inline", InlineConfig, build_inline)
