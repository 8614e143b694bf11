"""Hundreds of SIGKILLs at random moments over real runs of the tiny model: each ends like the undisturbed one.

The runs have ragged epochs, a reward model, and windows of KL and reward. In every fourth one durable writes go through
the process for them from the first one on, and half of the kills hit that one.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from verl_core.state.folder import CHECKPOINTS
from verl_core.state.runtime import FILE, RuntimeState, decode

from tests.support import runs
from tests.support.kills import killed_at_random
from tests.support.models import random_classifier
from tests.support.promise import Reference, broken_at_the_end, reference_of
from tests.support.tiny import Tiny

STEPS = 60  # of a round, which takes some thirty kills


def prove(seed: int, budget_s: float) -> dict[str, int | list[str]]:
    """Run after run until ``budget_s`` (seconds) is spent, the last one left in peace to its end.

    Returns ``kills`` and ``violations``, each with the round that shows it.
    """
    last = time.monotonic() + budget_s * 0.85  # the rest is for the last run and its checks
    kills, violations = 0, list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = Tiny(folder / "tiny").config(STEPS, reward_model=random_classifier(folder / "reward"))
        runs.ok("run", "--config", config, "--run-dir", folder / "undisturbed")
        reference, order = reference_of(folder / "undisturbed"), runs.prompt_order(folder / "undisturbed")
        windows = windows_of(folder / "undisturbed")
        for number in range(10_000):
            if time.monotonic() > last:
                break
            run, log, dice = folder / f"run {number}", folder / f"log {number}", random.Random(f"{seed} {number}")
            try:
                kills += killed_at_random(config, run, log, dice, lines=20, until=last, beside=number % 4 == 3)
                found = _broken(run, reference, order)
                found += [] if windows_of(run) == windows else ["other windows of KL and reward"]
            except AssertionError as error:
                found = [f"it did not come to its end: {error}"]
            violations += [f"kills, seed {seed}, round {number}: {what}" for what in found]
    return {"kills": kills, "violations": violations}


def windows_of(run: Path) -> RuntimeState:
    """The runtime state in the newest checkpoint."""
    newest = max((run / CHECKPOINTS).glob("step_*"))
    return decode((newest / FILE).read_bytes(), FILE)


def _broken(run: Path, reference: Reference, order: list[tuple[int, str]]) -> list[str]:
    """Policies, batches, rewards and consumption by ``broken_at_the_end``; then prompts, and the run's own audit."""
    found = broken_at_the_end(run, reference)
    if runs.prompt_order(run) != order:
        found.append("another order of prompts")
    audit = runs.cli("verify", run)
    if not audit.out.endswith("clean\n"):
        found.append(f"verify: {audit.out}{audit.err}")
    return found


if __name__ == "__main__":
    print(prove(seed=0, budget_s=270))
