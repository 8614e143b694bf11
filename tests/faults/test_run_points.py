"""Whole runs, killed at every operation of a step, of their start, and of their recovery: the same run in the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from verl_core.protocols import LossFn
from verl_core.state.schedule import Schedule
from verl_core.types import Completion, GenerateRequest, Sampling, TrainBatch, UpdateMetrics

from tests.support import light
from tests.support.light import LightRollout, LightTrainer
from tests.support.points import killed_everywhere
from tests.support.promise import Reference, broken, broken_at_the_end, reference_of

pytestmark = pytest.mark.usefixtures("without_syncs")

STEPS = 3
SMALL = ("training.prompts_per_step=2", "storage.keep_checkpoints=1")  # one batch a step, one checkpoint kept
run_small = partial(light.run, steps=STEPS, changes=SMALL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root = tmp_path_factory.mktemp("light")
    run_small(root)
    return reference_of(root)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after its first step."""
    root = tmp_path_factory.mktemp("stopped")
    run_small(root, until=1)
    return root


def again(prepared: Path) -> Callable[[Path], object]:
    return lambda root: shutil.copytree(prepared, root)


@pytest.mark.slow
def test_c06_c08_a_run_killed_at_any_operation_of_a_step_goes_on_as_if_undisturbed(
    tmp_path: Path, stopped: Path, undisturbed: Reference
) -> None:
    """Start, generation, training, save, retention: the step and all before it."""
    kills = 0
    for root in killed_everywhere(tmp_path, again(stopped), partial(run_small, until=2)):
        assert broken(root, undisturbed) == [], root
        run_small(root)
        assert broken_at_the_end(root, undisturbed) == [], root
        shutil.rmtree(root)
        kills += 1
    assert kills > 100


@pytest.mark.slow
def test_a_recovery_killed_at_any_operation_is_recovered_from(
    tmp_path: Path, stopped: Path, undisturbed: Reference
) -> None:
    """A run that was killed is started again, and killed at a point of its recovery, too."""
    kills = 0
    for number, killed in enumerate(
        killed_everywhere(tmp_path / "first", again(stopped), run_small, first=15, every=30)
    ):
        for root in killed_everywhere(tmp_path / f"second {number}", again(killed), run_small, every=8):
            assert broken(root, undisturbed) == [], root
            run_small(root)
            assert broken_at_the_end(root, undisturbed) == [], root
            shutil.rmtree(root)
            kills += 1
    assert kills > 40


def test_a_new_run_killed_while_it_begins_begins_again(tmp_path: Path, undisturbed: Reference) -> None:
    """Folder, state log, claims, the first batch: up to the first save."""
    for root in killed_everywhere(tmp_path, lambda root: root.mkdir(), run_small, every=6):
        if killed_enough := len(list((root / "checkpoints").glob("step_*"))):
            break
        assert broken(root, undisturbed) == [], root
        run_small(root)
        assert broken_at_the_end(root, undisturbed) == [], root
    assert killed_enough


# --- without kills ----------------------------------------------------------------------------


def test_c02_c10_a_run_resumed_from_any_checkpoint_of_three_epochs_is_the_same(tmp_path: Path) -> None:
    """Weights, optimizer, schedule and counters come back together, at the end of an epoch, too."""
    run = partial(light.run, steps=9, changes=["storage.keep_checkpoints=9"])
    run(tmp_path / "whole")
    want = reference_of(tmp_path / "whole")
    assert sorted(want.history.checkpoints) == list(range(1, 10))
    for step in range(1, 9):
        root = Path(shutil.copytree(tmp_path / "whole", tmp_path / f"from {step}"))
        run(root, resume=str(step))
        assert broken_at_the_end(root, want) == []
        assert [r.attempt for r in reference_of(root).history.steps.values()] == [1] * step + [2] * (9 - step)


def test_c02_a_run_stopped_after_every_step_of_three_epochs_is_the_same(tmp_path: Path) -> None:
    light.run(tmp_path / "whole", 9)
    for step in range(1, 10):
        light.run(tmp_path / "pieces", 9, until=step)
    assert broken_at_the_end(tmp_path / "pieces", reference_of(tmp_path / "whole")) == []


def test_c08_what_is_committed_is_never_generated_again(tmp_path: Path, undisturbed: Reference) -> None:
    """Batches that nobody trained on yet, and those of steps whose checkpoint is lost."""
    generated: list[int] = []

    class Counting(LightRollout):
        def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
            generated.append(self.version())
            return super().generate(requests, sampling)

    run_small(tmp_path, until=2, rollout=Counting)
    assert generated == [0, 1]
    shutil.rmtree(tmp_path / "checkpoints")
    run_small(tmp_path, rollout=Counting)
    assert generated == [0, 1, 2]
    assert broken_at_the_end(tmp_path, undisturbed) == []


def test_training_is_given_the_batches_of_its_step_in_the_order_of_the_schedule(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(LightTrainer):
        def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
            seen.extend(int(ids[0]) for ids in batch.prompt_ids)
            return super().update(batch, loss)

    light.run(tmp_path, 3, trainer=Watching)
    schedule = Schedule(3, tuple(range(light.PROMPTS)), 2, 4, True, 3)
    rows = [row for step in (1, 2, 3) for key in schedule.keys(step) for row in schedule.spec(key).rows]
    assert seen == [row for row in rows for _ in range(2)]
    assert sorted(rows) == list(range(light.PROMPTS))


@pytest.mark.parametrize(("interval", "saves"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (50, [5])])
def test_c11_saves_come_at_their_interval_and_at_the_end_and_at_no_other_step(
    tmp_path: Path, interval: int, saves: list[int]
) -> None:
    every = f"training.fault_tolerance.checkpoint_interval_steps={interval}"
    light.run(tmp_path, 5, changes=[every, "storage.keep_checkpoints=9"])
    assert sorted(reference_of(tmp_path).history.checkpoints) == saves
    assert sorted(int(p.name.removeprefix("step_")) for p in tmp_path.glob("checkpoints/step_*")) == saves
