"""On a real S3 server: sixteen workers that race on one batch, and SIGKILLs over runs that lie there."""

from __future__ import annotations

import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path

from verl_core.types import BuildContext
from verl_core_storage.s3 import S3Config, build_s3

from tests.services.seaweed import Seaweed
from tests.support import runs
from tests.support.kills import killed_at_random, same_run
from tests.support.races import race
from tests.support.tiny import Tiny

WORKERS, ROUNDS = 16, 100
STEPS = 45


def prove(seed: int, budget_s: float) -> dict[str, int | list[str]]:
    """The races, then run after run until ``budget_s`` (seconds) is spent, the last one left in peace to its end.

    Returns ``races``, ``s3_kills`` and ``violations``, each with the round that shows it.
    """
    last = time.monotonic() + budget_s * 0.8  # the rest is for the last run and its checks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = Seaweed(folder / "server")
        try:
            server.start()
            server.make_bucket("runs")
            os.environ.update(server.environ())
            found = race(
                partial(build_s3, S3Config(), BuildContext(uri="s3://runs/races")), workers=WORKERS, rounds=ROUNDS
            )
            kills, broken = _kills(folder, seed, last)
        finally:
            server.kill()
    return {"races": ROUNDS, "s3_kills": kills, "violations": [*(f"races on S3, {what}" for what in found), *broken]}


def _kills(folder: Path, seed: int, last: float) -> tuple[int, list[str]]:
    """How often controllers were killed, and what differs from the undisturbed run, which is on the local disk."""
    tiny, kills, violations = Tiny(folder / "tiny"), 0, list[str]()
    runs.ok("run", "--config", tiny.config(STEPS), "--run-dir", folder / "undisturbed")
    for number in range(10_000):
        if time.monotonic() > last:
            break
        run, dice = f"s3://runs/kills-{number}", random.Random(f"{seed} {number}")
        config, log = tiny.config(STEPS, run), folder / f"log {number}"
        try:
            kills += killed_at_random(config, run, log, dice, lines=60, patience_s=4, until=last)
            same_run(run, folder / "undisturbed")
        except AssertionError as error:
            violations.append(f"kills on S3, seed {seed}, round {number}: {error}")
    return kills, violations


if __name__ == "__main__":
    print(prove(seed=0, budget_s=200))
