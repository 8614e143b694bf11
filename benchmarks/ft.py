"""Group ``ft``: what fault tolerance costs a step of the quickstart.

One run has it switched on and off in turns of five steps, the distance of its saves: two engines differ by some percent
from where their memory happens to lie, so two runs beside each other would measure that. Off means what
``training.fault_tolerance.enabled=false`` means: no commits, no synced state log, no save. Writes that were handed in
are done before the next turn begins, on the clock of none. Several runs, each with an engine of its own.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from functools import partial
from itertools import chain
from pathlib import Path

import verl_core
from verl_core.actions import Actions
from verl_core.api import Trainer
from verl_core.config.compose import packaged_configs
from verl_core.loop import Controller
from verl_core.quickstart.model import make_tiny_model
from verl_core.quickstart.task import write_sort_task

RUNS, PAIRS, STEPS = 5, 15, 5  # 5 × 15 × 5 = 375 steps are measured of each
WARM = 6  # turns before those, with it: the process for writes starts in them


def measure() -> dict[str, float]:
    """``ft_overhead_ratio``: seconds of a turn, its save included, with over without; the median of all neighbours.
    ``ft_overhead_step_ratio``: of the medians of all steps; ``ft_overhead_mean_ratio``: of their means."""
    on, off = list[list[float]](), list[list[float]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = make_tiny_model(folder / "model", 0), write_sort_task(folder / "data", 0)
        for number in range(RUNS):
            for enabled, seconds in take_turns(_trainer(folder / str(number), model, data), random.Random(number)):
                (on if enabled else off).append(seconds)
    steps, off_steps = list(chain(*on)), list(chain(*off))
    return {
        "ft_overhead_ratio": statistics.median(sum(a) / sum(b) for a, b in zip(on, off, strict=True)),
        "ft_overhead_step_ratio": statistics.median(steps) / statistics.median(off_steps),
        "ft_overhead_mean_ratio": statistics.mean(steps) / statistics.mean(off_steps),
        "ft_step_s": statistics.median(steps),
        "ft_off_step_s": statistics.median(off_steps),
    }


def take_turns(trainer: Trainer, dice: random.Random) -> list[tuple[bool, list[float]]]:
    """Whether it was on, and the seconds of the steps, of each turn that is measured."""
    turns, seconds, since = list[tuple[bool, list[float]]](), list[float](), time.perf_counter()
    plan = [True] * WARM
    for _ in range(PAIRS):
        pair = [True, False]
        dice.shuffle(pair)
        plan += pair

    def step(_: object) -> None:
        nonlocal seconds, since
        seconds.append(time.perf_counter() - since)
        if len(seconds) == STEPS:
            controller = trainer._controller
            assert controller is not None
            controller.parts.writes.barrier()
            turns.append((plan[len(turns)], seconds))
            seconds = []
            switch(controller, on=len(turns) == len(plan) or plan[len(turns)])
        since = time.perf_counter()

    trainer.on("step_finished", step)
    trainer.run()
    return turns[WARM:]


def switch(controller: Controller, *, on: bool) -> None:
    """Between two steps: what ``assemble`` derives from ``training.fault_tolerance.enabled``."""
    parts, actions = controller.parts, controller.actions
    vars(actions).update(save=partial(Actions.save, actions) if on else lambda step: None)
    parts.store._durable = on
    assert parts.journal._file is not None
    parts.journal._file._sync = on


def _trainer(folder: Path, model: Path, data: Path) -> Trainer:
    return verl_core.create_trainer(
        packaged_configs() / "quickstart.yaml",
        run_dir=folder,
        overrides=[
            f"model.actor.path={model}",
            f"data.train_files=[{data}]",
            f"training.fault_tolerance.checkpoint_interval_steps={STEPS}",
            f"total_steps={(WARM + 2 * PAIRS) * STEPS}",
        ],
    )
