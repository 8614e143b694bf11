"""A reward model as a role: what it scores is exactly once, too, and it cannot change unnoticed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from verl_core.api import create_trainer
from verl_core.errors import RunMismatch

from tests.support import runs
from tests.support.kills import killed_at_random, same_run
from tests.support.models import random_classifier
from tests.support.tiny import Tiny

KILLS = 12


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(random_classifier(tmp_path_factory.mktemp("first") / "model", seed=1))


def config_of(tiny: Tiny, steps: int, model: Path, folder: Path) -> Path:
    """The tiny run with a reward model, as a file."""
    text = tiny.config(steps).read_text()
    path = folder / f"model{steps}.yaml"
    path.write_text(text.replace("{name: exact_match}", f'{{name: sequence_classifier, path: "{model}"}}'))
    assert str(model) in path.read_text()
    return path


def test_a_reward_model_that_changed_in_its_folder_is_refused(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    model, run = Path(shutil.copytree(first, tmp_path / "model")), tmp_path / "run"
    config = config_of(tiny, 4, model, tmp_path)
    create_trainer(config, run_dir=run).run(until_step=2)
    before = runs.lines(run)
    shutil.copyfile(random_classifier(tmp_path / "other", seed=2) + "/model.safetensors", model / "model.safetensors")
    refused = runs.cli("run", "--run-dir", run)
    assert (refused.code, refused.err.count("\n")) == (RunMismatch.exit_code, 1)
    assert "the reward model changed" in refused.err
    assert runs.lines(run) == before
    shutil.copyfile(first / "model.safetensors", model / "model.safetensors")
    assert create_trainer(config, run_dir=run).run().state == "DONE"


def test_a_missing_reward_model_is_a_finding_before_anything_is_written(tiny: Tiny, tmp_path: Path) -> None:
    config = config_of(tiny, 4, Path("/nowhere/model"), tmp_path)
    refused = runs.cli("run", "--config", config, "--run-dir", tmp_path / "run")
    assert (refused.code, "model folder does not exist" in refused.err) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing_with_a_reward_model(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    config, dice = config_of(tiny, 40, first, tmp_path), random.Random(5)
    reference, run = tmp_path / "reference", tmp_path / "run"
    runs.ok("run", "--config", config, "--run-dir", reference)
    kills = killed_at_random(config, run, tmp_path / "log", dice, lines=16, at_most=KILLS)
    assert kills >= KILLS, "too few to say anything: make the run longer"
    same_run(run, reference)
