"""Threads for calls that may never return: whoever waits leaves them behind, and their number is bounded."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

from verl_core.errors import StorageTimeout

T = TypeVar("T")


class Job(futures.Future[T]):
    """A call in a thread of its own. ``abandoned``: nobody waits for it any more, it must have no further effect."""

    abandoned = False

    def cancel(self) -> bool:
        self.abandoned = True
        return super().cancel()


class Threads:
    """One daemon thread a call, at most ``limit`` at once, so that a hung mount cannot eat up the process."""

    def __init__(self, limit: int = 64) -> None:
        self.limit, self._current = limit, threading.local()
        self._renew()

    def start(self, run: Callable[[], T], name: str) -> Job[T]:
        """Begin a call. Raises ``StorageTimeout`` when ``limit`` calls are under way, most likely stuck."""
        if self._pid != os.getpid():
            self._renew()  # the threads of the parent did not come along
        if not self._free.acquire(blocking=False):
            raise StorageTimeout(
                f"{self.limit} calls have not returned", where=name, remedy="look at the mount: it is most likely hung"
            )
        job: Job[T] = Job()
        job.set_running_or_notify_cancel()
        threading.Thread(target=self._work, args=(job, run, self._free), name=f"verl-{name}", daemon=True).start()
        return job

    def current(self) -> Job[object] | None:
        """The job of the thread that asks."""
        job: Job[object] | None = getattr(self._current, "job", None)
        return job

    def _renew(self) -> None:
        self._pid, self._free = os.getpid(), threading.BoundedSemaphore(self.limit)

    def _work(self, job: Job[T], run: Callable[[], T], free: threading.BoundedSemaphore) -> None:
        self._current.job = job
        try:
            job.set_result(run())
        except BaseException as error:  # noqa: BLE001 - border: raised where the result is asked for
            job.set_exception(error)
        finally:
            free.release()
