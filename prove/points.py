"""Whole runs killed at crash points or after a time, their recoveries killed, too, and so on: the same in the end.

The runs are light ones (``tests.support.light``): the real controller and storage, and engines of a few integers.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from verl_core.errors import VerlError
from verl_core.testing.disk import without_syncs
from verl_core.testing.faulty import killed_after, killed_at

from tests.support import light
from tests.support.promise import Reference, broken, broken_at_the_end, reference_of

STEPS = 4
LIVES = 6  # of a run, at most, before it is left in peace
BEYOND = 450  # crash points that a run of these sizes passes, about
LONG_S = 0.3  # that it takes, about
INTERVAL = "training.fault_tolerance.checkpoint_interval_steps"
SHAPES = (
    ("training.prompts_per_step=2", "storage.keep_checkpoints=1"),
    ("training.prompts_per_step=4", "storage.keep_checkpoints=1"),
    ("training.prompts_per_step=4", "storage.keep_checkpoints=3", f"{INTERVAL}=2"),
    ("training.prompts_per_step=4", "distributed.rollout_workers=2", f"{INTERVAL}=3"),
)


def prove(seed: int, budget_s: float) -> dict[str, int | list[str]]:
    """Runs that die at points or moments drawn with ``seed``, until ``budget_s`` (seconds) is spent.

    Returns ``point_kills`` and ``violations``, each with the round and the points that show it.
    """
    until, kills, violations = time.monotonic() + budget_s, 0, list[str]()
    with tempfile.TemporaryDirectory() as name, without_syncs():
        folder = Path(name)
        references = [_undisturbed(folder / f"shape {number}", shape) for number, shape in enumerate(SHAPES)]
        for number, points in _rounds(seed):
            if time.monotonic() > until:
                break
            shape, root = number % len(SHAPES), folder / "run"
            died, found = _lived(root, SHAPES[shape], references[shape], points)
            kills += died
            violations += [f"points, seed {seed}, round {number}, killed at {points[:died]}: {what}" for what in found]
            shutil.rmtree(root)
    return {"point_kills": kills, "violations": violations}


def _rounds(seed: int) -> Iterator[tuple[int, list[int | float]]]:
    """Number of a round, and where each of its lives ends: at a crash point, or after some seconds."""
    number = 0
    while True:
        dice = random.Random(f"{seed} {number}")
        lives = range(dice.randint(1, LIVES))
        yield number, [dice.choice((dice.randint(1, BEYOND), dice.uniform(0, LONG_S))) for _ in lives]
        number += 1


def _undisturbed(root: Path, shape: tuple[str, ...]) -> Reference:
    light.run(root, STEPS, changes=shape)
    return reference_of(root)


def _lived(
    root: Path, shape: tuple[str, ...], reference: Reference, points: list[int | float]
) -> tuple[int, list[str]]:
    """How often the run died, and what was broken at any of its deaths or in the end."""
    operation, died = partial(light.run, root, STEPS, changes=shape), 0
    root.mkdir()
    try:
        for point in points:
            killed = killed_at(point, operation) if isinstance(point, int) else killed_after(point, operation)
            if not killed:
                break
            died += 1
            if found := broken(root, reference):
                return died, found
        operation()
    except (VerlError, OSError, AssertionError) as error:
        return died, [f"{type(error).__name__}: {error}"]
    return died, broken_at_the_end(root, reference)


if __name__ == "__main__":
    print(prove(seed=0, budget_s=60))
