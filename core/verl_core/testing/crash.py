"""Named crash points: the process kills itself at a chosen one, so that tests can look at what it leaves behind.

``VERL_CORE_CRASH="publish.renamed:2"`` kills at the second pass of that point, ``"*:7"`` at the seventh pass of any.
"""

from __future__ import annotations

import itertools
import os
import signal


class _Countdown:
    def __init__(self, name: str, at: int, number: int) -> None:
        self.name, self.at, self.number = name, at, number
        self.passes = itertools.count(1)  # one step is atomic: several threads pass points

    def passed(self, name: str) -> None:
        if self.name in ("*", name) and next(self.passes) == self.at:
            os.kill(os.getpid(), self.number)


_countdown: _Countdown | None = None


def arm(plan: str, number: int = signal.SIGKILL) -> None:
    """Take over ``"name:n"``, and the signal to be sent there; an empty plan disarms."""
    global _countdown
    name, _, count = plan.rpartition(":")
    _countdown = _Countdown(name, int(count), number) if plan else None


def point(name: str) -> None:
    """A place between two effects; costs one look at a name when nothing is armed."""
    if _countdown is not None:
        _countdown.passed(name)


arm(os.environ.get("VERL_CORE_CRASH", ""))
