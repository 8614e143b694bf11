"""Virtual time: events in the order of their times, nothing happens between them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

START = 1_750_000_000.0  # wall time at the beginning of a simulation


class Clock:
    """``now`` is monotonic; ``wall`` follows it and may be made to jump."""

    def __init__(self) -> None:
        self._now, self._offset = 0.0, START
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._offset += seconds

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), event))

    def step(self, until: float) -> bool:
        """Let the next event happen; False, and the time is ``until``, when there is none before."""
        if not self._events or self._events[0][0] > until:
            self._now = max(self._now, until)
            return False
        time, _, event = heapq.heappop(self._events)
        self._now = max(self._now, time)
        event()
        return True

    def run(self, until: float) -> None:
        """All events up to ``until``."""
        while self.step(until):
            pass
