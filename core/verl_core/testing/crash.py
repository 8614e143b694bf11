"""Named crash points: the process kills itself at a chosen one, so that tests can look at what it leaves behind.

``VERL_CORE_CRASH="publish.renamed:2"`` kills at the second pass of that point, ``"*:7"`` at the seventh pass of any.
A process that works for another one takes over its countdown for a call: both die where that one alone would have.
"""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Armed:
    """The pass of which point is the last, and the signal that is sent there to these processes, in this order."""

    name: str
    at: int
    number: int
    pids: tuple[int, ...]


class _Countdown:
    def __init__(self, armed: Armed) -> None:
        self.armed, self.count = armed, 0
        self._passes = itertools.count(1)  # one step is atomic: several threads pass points

    def passed(self, name: str) -> None:
        if self.armed.name in ("*", name):
            self.advance(1)

    def advance(self, passes: int) -> None:
        for _ in range(passes):
            self.count = next(self._passes)
            if self.count == self.armed.at:
                for pid in self.armed.pids:
                    os.kill(pid, self.armed.number)


_countdown: _Countdown | None = None


def arm(plan: str, number: int = signal.SIGKILL) -> None:
    """Take over ``"name:n"``, and the signal to be sent there; an empty plan disarms."""
    name, _, count = plan.rpartition(":")
    take_over(Armed(name, int(count), number, (os.getpid(),)) if plan else None)


def point(name: str) -> None:
    """A place between two effects; costs one look at a name when nothing is armed."""
    if _countdown is not None:
        _countdown.passed(name)


def lent() -> Armed | None:
    """What is left of the countdown, for another process."""
    if _countdown is None:
        return None
    armed = _countdown.armed
    return Armed(armed.name, armed.at - _countdown.count, armed.number, armed.pids)


def take_over(armed: Armed | None) -> None:
    """Count down for the process that lent this: it is killed first, and then this one."""
    global _countdown
    if armed is not None and os.getpid() not in armed.pids:
        armed = Armed(armed.name, armed.at, armed.number, (*armed.pids, os.getpid()))
    _countdown = _Countdown(armed) if armed else None


def passes() -> int:
    """How many of the counted points were passed."""
    return 0 if _countdown is None else _countdown.count


def give_back(passes: int) -> None:
    """Go on where the other process stopped counting."""
    if _countdown is not None:
        _countdown.advance(passes)


arm(os.environ.get("VERL_CORE_CRASH", ""))
