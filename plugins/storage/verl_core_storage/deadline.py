"""Calls that end in time: whoever waits gives up at the deadline, also when the other side never answers.

A ``Deadline`` moves when more bytes are to be carried, so that a call is as patient as its size asks for. A call that
makes no progress for ``Limits.alert_after_s`` is told of once, while it goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import TypeVar

from verl_core.errors import StorageError, StorageTimeout

T = TypeVar("T")
MIB = 1 << 20
GRACE_S = 0.25  # a call that times itself knows more than who waits for it: it may end by itself
_BRISK = 64  # a request may be this much quicker than the slowest rate allowed before its silence counts
_log = logging.getLogger("verl.storage")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a call may take, and how often it is tried."""

    timeout_s: float = 60.0  # of a call, its retries included, beside what its bytes need
    attempts: int = 5
    alert_after_s: float = 3.0
    min_bytes_per_s: float = MIB  # slower than this is as good as hung

    def seconds_for(self, size: int) -> float:
        return size / self.min_bytes_per_s


class Deadline:
    """A moment that moves away while bytes are carried, and how long nothing has moved. For several threads."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock = limits, clock
        self.allowed_s = limits.timeout_s
        self._at = clock() + limits.timeout_s
        self._silent_from = clock()

    @property
    def left_s(self) -> float:
        return self._at - self._clock()

    @property
    def silent_s(self) -> float:
        return self._clock() - self._silent_from

    def extend(self, seconds: float) -> None:
        self.allowed_s += seconds
        self._at += seconds

    def carry(self, size: int) -> None:
        """So many bytes are on their way."""
        self.extend(self.limits.seconds_for(size))

    def progress(self, size: int = 0) -> None:
        """Something moved, or a request of ``size`` bytes begins."""
        self._silent_from = self._clock() + self.limits.seconds_for(size) / _BRISK


@dataclass(frozen=True, slots=True)
class Call:
    """What is done, and where: stands in every error."""

    operation: str
    where: str
    remedy: str  # when no answer comes

    def late(self, allowed_s: float) -> StorageTimeout:
        what = f"{self.operation}: not done within {allowed_s:.3g} s"
        return StorageTimeout(what, where=self.where, remedy=self.remedy)

    def stuck(self, waited_s: float) -> StorageTimeout:
        what = f"{self.operation}: no answer for {waited_s:.3g} s"
        return StorageTimeout(what, where=self.where, remedy=self.remedy)


class Waiter:
    """Waits for the results of calls that run elsewhere, within their deadlines."""

    def __init__(self, limits: Limits, on_wait: Callable[[StorageError], None] | None = None) -> None:
        self.limits, self._on_wait = limits, on_wait

    def wait(self, future: futures.Future[T], call: Call, deadline: Deadline) -> T:
        """The call's result, or its error; past the deadline it is cancelled and ``StorageTimeout`` raised."""
        begin, told = time.monotonic(), False
        while not future.done():
            left_s = deadline.left_s + GRACE_S
            if left_s <= 0:
                future.cancel()
                raise call.late(deadline.allowed_s)
            quiet_s = self.limits.alert_after_s - deadline.silent_s
            if not told and quiet_s <= 0:
                told = True
                self._tell(call.stuck(deadline.silent_s))
            futures.wait([future], timeout=left_s if told else min(left_s, max(quiet_s, 0.001)))
        if told:
            _log.warning("%s: %s: ended after %.1f s", call.where, call.operation, time.monotonic() - begin)
        return future.result()

    def _tell(self, error: StorageError) -> None:
        _log.warning("%s", error)
        if self._on_wait is not None:
            self._on_wait(error)
