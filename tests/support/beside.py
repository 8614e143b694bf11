"""The command line with the process for writes started at the first of them, and waited for: ``python -m`` this."""

from __future__ import annotations

import sys

import psutil
from verl_core import apart

MODULE = [sys.executable, "-m", "tests.support.beside"]


def at_once() -> None:
    """In this process, from now on."""

    def start(helper: apart.Helper) -> None:
        begin(helper)
        if helper._pipe is not None:
            helper._pipe.waits(60)

    begin = apart.Helper._start
    apart.AFTER = 0
    apart.Helper._start = start  # type: ignore[method-assign,assignment]


def helper_of(pid: int) -> psutil.Process | None:
    """The process for writes of a controller."""
    try:
        children = psutil.Process(pid).children()
        return next((child for child in children if "verl_core.apart" in " ".join(child.cmdline())), None)
    except psutil.Error:
        return None


if __name__ == "__main__":
    from verl_core.cli.main import main

    at_once()
    main()
