"""Runs that save by phase, by volatility and at milestones, killed: they save at the steps of the undisturbed run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from verl_core.protocols import LossFn
from verl_core.types import TrainBatch, UpdateMetrics

from tests.support import light
from tests.support.light import LightTrainer
from tests.support.points import killed_everywhere
from tests.support.promise import broken, broken_at_the_end, reference_of

pytestmark = pytest.mark.usefixtures("without_syncs")

STEPS = 16
ADAPTIVE = "training.fault_tolerance.adaptive_checkpoint"
CHANGES = (
    f"{ADAPTIVE}.enabled=true",
    f"{ADAPTIVE}.intervals=[{{steps: 0, interval: 3}}, {{steps: 6, interval: 4}}]",
    f"{ADAPTIVE}.volatility_window=3",
    f"{ADAPTIVE}.volatility_threshold=0.8",
    f"{ADAPTIVE}.milestone_loss_drop=0.5",
    f"{ADAPTIVE}.milestone_kl=0.1",
    "training.prompts_per_step=2",
    "storage.keep_checkpoints=99",
)
LOSSES = (1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 3.0, 0.5, 8.0, 1.0, 1.0, 1.0, 1.0)
KLS = (0.0, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.05, 0.0, 0.3, 0.0)
SAVED = [3, 6, 7, 8, 10, 12, 13, 14, 16]  # 6, 7: the loss fell; 10, 14: it is volatile; 13: the KL came down


class Measuring(LightTrainer):
    """Reports a loss and a KL that are a function of the step."""

    def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
        metrics = super().update(batch, loss)
        return replace(metrics, loss=LOSSES[batch.step - 1], kl=KLS[batch.step - 1])


run_adaptive = partial(light.run, steps=STEPS, changes=CHANGES, trainer=Measuring)


def saves(root: Path) -> list[int]:
    """The steps that are saved; none of them goes."""
    return sorted(int(mark.parent.name.removeprefix("step_")) for mark in root.glob("checkpoints/step_*/SUCCESS"))


def test_a_run_saves_by_phase_twice_as_often_while_volatile_and_at_milestones(tmp_path: Path) -> None:
    run_adaptive(tmp_path)
    assert saves(tmp_path) == SAVED


def test_e7_a_run_killed_at_many_points_saves_at_the_steps_of_the_undisturbed_one(tmp_path: Path) -> None:
    run_adaptive(tmp_path / "undisturbed")
    reference, kills = reference_of(tmp_path / "undisturbed"), 0
    for root in killed_everywhere(tmp_path, lambda root: root.mkdir(), run_adaptive, first=100, every=61):
        assert broken(root, reference) == [], root
        run_adaptive(root)
        assert broken_at_the_end(root, reference) == [], root
        assert saves(root) == SAVED, root
        shutil.rmtree(root)
        kills += 1
    assert kills > 10


def test_a_run_that_lost_its_saves_decides_again_as_before(tmp_path: Path) -> None:
    """Trained once more from the base model, with the records of the first time still in the state log."""
    run_adaptive(tmp_path, until=14)
    for step in SAVED[2:-1]:
        shutil.rmtree(tmp_path / f"checkpoints/step_{step:06d}")
    run_adaptive(tmp_path)
    assert saves(tmp_path) == SAVED
