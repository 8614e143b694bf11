"""Group ``ft``: what fault tolerance costs a step of the quickstart, against the same run without it.

Off means: no commits, no synced state log, no save but the last. Both runs live in one process and take turns of eleven
steps, so that a machine that is slow for a while is slow for both; the first step of a turn is left out. Each round
builds both anew, the other one first: where an engine's memory happens to lie is worth some percent of its speed.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

import verl_core
from verl_core.api import Trainer
from verl_core.config.compose import packaged_configs
from verl_core.quickstart.model import make_tiny_model
from verl_core.quickstart.task import write_sort_task

ROUNDS, TURNS, STEPS = 30, 1, 11  # 30 × 1 × 10 = 300 steps are measured of each


def measure() -> dict[str, float]:
    """``ft_overhead_ratio``: median seconds of a step with, over without; the means beside it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = make_tiny_model(folder / "model", 0), write_sort_task(folder / "data", 0)
        on, off = list[float](), list[float]()
        for number in range(ROUNDS):
            pair = [(_trainer(folder / str(number), model, data, enabled), enabled) for enabled in (True, False)]
            pair = pair if number % 2 else pair[::-1]
            for (_, enabled), seconds in zip(pair, take_turns([trainer for trainer, _ in pair]), strict=True):
                (on if enabled else off).extend(seconds)
    return {
        "ft_overhead_ratio": statistics.median(on) / statistics.median(off),
        "ft_overhead_mean_ratio": statistics.mean(on) / statistics.mean(off),
        "ft_step_s": statistics.median(on),
        "ft_off_step_s": statistics.median(off),
    }


def take_turns(trainers: list[Trainer]) -> list[list[float]]:
    """Seconds of the measured steps of each. One trainer is at work at a time."""
    turns = [threading.Semaphore(1 if i == 0 else 0) for i in range(len(trainers))]
    seconds: list[list[float]] = [[] for _ in trainers]

    def run(mine: int) -> None:
        done, since = 0, 0.0

        def step(_: object) -> None:
            nonlocal done, since
            done, now = done + 1, time.perf_counter()
            if done % STEPS != 1:
                seconds[mine].append(now - since)
            if done % STEPS == 0:
                turns[(mine + 1) % len(trainers)].release()
                turns[mine].acquire(timeout=600)
            since = time.perf_counter()

        trainers[mine].on("step_finished", step)
        turns[mine].acquire(timeout=600)
        trainers[mine].run()
        turns[(mine + 1) % len(trainers)].release()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(trainers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def _trainer(folder: Path, model: Path, data: Path, enabled: bool) -> Trainer:
    return verl_core.create_trainer(
        packaged_configs() / "quickstart.yaml",
        run_dir=folder / str(enabled),
        overrides=[
            f"model.actor.path={model}",
            f"data.train_files=[{data}]",
            f"training.fault_tolerance.enabled={enabled}",
            f"total_steps={TURNS * STEPS}",
        ],
    )
