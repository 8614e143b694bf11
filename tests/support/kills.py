"""SIGKILL at moments that nobody chose: a run is killed again and again until it is done."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support import runs
from tests.support.beside import MODULE, helper_of


def killed_at_random(
    config: Path,
    run: Path | str,
    log: Path,
    dice: random.Random,
    *,
    lines: int = 40,
    at_most: int = 1000,
    until: float = float("inf"),
    patience_s: float = 2.0,
    beside: bool = False,
) -> int:
    """Run ``config`` under its own restarts and kill each controller after up to ``lines`` lines of the state log (a
    step has five) or ``patience_s``; returns how often. Both must leave time for a save now and then.

    ``beside``: durable writes go through the process for them from the first one on; every other kill hits that one.
    After ``at_most`` kills, or past ``until`` (monotonic seconds), it is left in peace to its end. Raises
    AssertionError when the run does not come to its end by itself.
    """
    command = {"command": MODULE} if beside else {}
    process = runs.start("run", "--config", config, "--run-dir", run, "--max-restarts", "10000", log=log, **command)
    kills, last = 0, None
    try:
        while process.poll() is None and kills < at_most and time.monotonic() < until:
            pid = runs.controller_pid(run)
            if pid is None or pid == last:
                time.sleep(0.01)
                continue
            more = runs.lines(run) + dice.randint(0, lines)
            patience = time.monotonic() + patience_s
            while runs.lines(run) < more and time.monotonic() < patience:
                time.sleep(0.002)
            time.sleep(dice.uniform(0.0, 0.05))
            helper = helper_of(pid) if beside and kills % 2 else None
            with suppress(ProcessLookupError, psutil.NoSuchProcess):  # it came to its end
                if helper is None:
                    os.kill(pid, signal.SIGKILL)
                    last = pid
                else:
                    helper.kill()
                kills += 1
        assert process.wait(120) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    return kills


def same_run(run: Path | str, reference: Path) -> None:
    """Equal policies, batches, prompt order and rewards, and a clean audit."""
    got, want = runs.status(run), runs.status(reference)
    for fact in ("state", "step", "policy_digest", "reward_mean", "prompts_consumed", "batches_committed"):
        assert got[fact] == want[fact], fact
    assert runs.batches(run) == runs.batches(reference), "other batches"
    assert runs.prompt_order(run) == runs.prompt_order(reference), "another order of prompts"
    assert runs.generated_though_committed(run) == [], "generated again"
    assert runs.ok("verify", run).endswith("clean\n")
