"""SIGKILL at moments that nobody chose: a run is killed again and again until it is done."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.support import runs


def killed_at_random(
    config: Path,
    run: Path,
    log: Path,
    dice: random.Random,
    *,
    lines: int = 40,
    at_most: int = 1000,
    until: float = float("inf"),
) -> int:
    """Run ``config`` under its own restarts and kill each controller after up to ``lines`` lines of the state log (a
    step has five); returns how often.

    After ``at_most`` kills, or past ``until`` (monotonic seconds), it is left in peace to its end. Raises
    AssertionError when the run does not come to its end by itself.
    """
    process = runs.start("run", "--config", config, "--run-dir", run, "--max-restarts", "10000", log=log)
    kills, last = 0, None
    try:
        while process.poll() is None and kills < at_most and time.monotonic() < until:
            pid = runs.controller_pid(run)
            if pid is None or pid == last:
                time.sleep(0.01)
                continue
            more = runs.lines(run) + dice.randint(0, lines)
            patience = time.monotonic() + 2
            while runs.lines(run) < more and time.monotonic() < patience:
                time.sleep(0.002)
            time.sleep(dice.uniform(0.0, 0.05))
            with suppress(ProcessLookupError):  # it came to its end
                os.kill(pid, signal.SIGKILL)
                kills, last = kills + 1, pid
        assert process.wait(120) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    return kills
