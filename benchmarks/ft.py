"""Group ``ft``: what fault tolerance costs a step of the quickstart, against the same run without it.

Off means: no commits, no synced state log, no save but the last. The two runs take turns in pieces of twenty steps in
one process; the first step of a piece (imports, loading) is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import verl_core
from verl_core.config.compose import packaged_configs
from verl_core.quickstart.model import make_tiny_model
from verl_core.quickstart.task import write_sort_task

PIECES, STEPS = 11, 20  # 11 × 19 = 209 steps are measured of each


def measure() -> dict[str, float]:
    """``ft_overhead_ratio``: median seconds of a step with, over without; the means beside it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = _take_turns(folder, make_tiny_model(folder / "model", 0), write_sort_task(folder / "data", 0))
    on, off = seconds["true"], seconds["false"]
    return {
        "ft_overhead_ratio": statistics.median(on) / statistics.median(off),
        "ft_overhead_mean_ratio": statistics.mean(on) / statistics.mean(off),
        "ft_step_s": statistics.median(on),
        "ft_off_step_s": statistics.median(off),
    }


def _take_turns(folder: Path, model: Path, data: Path) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"true": [], "false": []}
    for piece in range(PIECES):
        for enabled in ("true", "false") if piece % 2 else ("false", "true"):
            trainer = verl_core.create_trainer(
                packaged_configs() / "quickstart.yaml",
                run_dir=folder / enabled,
                overrides=[
                    f"model.actor.path={model}",
                    f"data.train_files=[{data}]",
                    f"training.fault_tolerance.enabled={enabled}",
                    f"total_steps={PIECES * STEPS}",
                ],
            )
            moments: list[float] = []
            trainer.on("step_finished", lambda _, moments=moments: moments.append(time.perf_counter()))
            trainer.run(until_step=(piece + 1) * STEPS)
            seconds[enabled] += [b - a for a, b in pairwise(moments)]
    return seconds
