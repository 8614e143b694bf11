"""When a run saves by itself: its newest save is old, and a GPU is about to run out of memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ..config.devices import memory_in_use

ASK_S = 5.0  # between two questions to the driver


class GpuMemory:
    """The share of memory in use on the fullest GPU of this process.

    A driver may hang: it is asked by a thread of its own, which nobody waits for.
    """

    def __init__(self, read: Callable[[], float] = lambda: memory_in_use(os.environ)) -> None:
        self._read = read
        self._asked = float("-inf")
        self._thread: threading.Thread | None = None
        self._answer = 0.0

    def share(self, now: float) -> float:
        """0 to 1. Each answer is told once, at the call after the one that asked for it; else it is 0."""
        if self._thread is not None and self._thread.is_alive():
            return 0.0
        answer, self._answer = self._answer, 0.0
        if now - self._asked >= ASK_S:
            self._asked = now
            self._thread = threading.Thread(target=self._ask, name="verl-gpu-memory", daemon=True)
            self._thread.start()
        return answer

    def _ask(self) -> None:
        self._answer = self._read()


class SaveAge:
    """How much would be lost if the run died now. Times are monotonic seconds."""

    def __init__(self, limit_s: float = 0.0, fraction: float = 1.0, memory: GpuMemory | None = None) -> None:
        """``limit_s`` 0: never asks for a save."""
        self._limit_s, self._fraction, self._memory = limit_s, fraction, memory or GpuMemory()
        self._step, self._since = 0, float("inf")  # nothing is loaded yet

    def saved(self, step: int, now: float) -> None:
        """``step`` was just saved, or loaded."""
        self._step, self._since = step, now

    def risk(self, step: int, now: float) -> str:
        """Why ``step``, the newest one, must be saved at once; "" where it need not. Told once in ``limit_s``."""
        age = now - self._since
        if not self._limit_s or age <= self._limit_s or step <= self._step:
            return ""
        share = self._memory.share(now)
        if share <= self._fraction:
            return ""
        self._since = now
        return f"{share:.0%} of a GPU's memory is in use, and the newest save (step {self._step}) is {age:.0f} s old"
