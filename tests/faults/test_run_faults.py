"""Whole runs whose engines fail, lose what they were given, or do not repeat themselves: bounded, journalled, named."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from verl_core.errors import DamagedError, ModelError, OutOfMemory, SafeModeError, VerlError, WorkerLost
from verl_core.protocols import LossFn
from verl_core.types import (
    Completion,
    GenerateRequest,
    PlatformKey,
    Sampling,
    Slice,
    TensorChunk,
    TrainBatch,
    UpdateMetrics,
)

from tests.support import light, runs
from tests.support.light import LightRollout, LightTrainer
from tests.support.promise import Reference, broken, broken_at_the_end, history_of, reference_of

STEPS = 4
HANG_S = 30.0  # nobody waits for it
run = partial(light.run, steps=STEPS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root = tmp_path_factory.mktemp("light")
    run(root)
    return reference_of(root)


def events(root: Path) -> list[str]:
    return [str(entry["event"]) for entry in runs.entries(root)]


def sick(error: VerlError, step: int, times: int) -> type[LightTrainer]:
    """A trainer that fails at a step, so many times."""
    left = [times]

    class Sick(LightTrainer):
        def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
            if batch.step == step and left[0]:
                left[0] -= 1
                raise error
            return super().update(batch, loss)

    return Sick


NO_ROOM = OutOfMemory("no room for the step")
A_FIT = RuntimeError("a fit")


def failing(version: int, times: int, error: Exception = A_FIT) -> type[LightRollout]:
    """Rollout workers that fail at a policy version, so many times."""
    left = [times]

    class Sick(LightRollout):
        def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
            if self.version() == version and left[0]:
                left[0] -= 1
                raise error
            return super().generate(requests, sampling)

    return Sick


# --- budgets ----------------------------------------------------------------------------------


def test_a_step_that_runs_out_of_memory_once_is_tried_again(tmp_path: Path, undisturbed: Reference) -> None:
    run(tmp_path, trainer=sick(NO_ROOM, 3, times=1))
    assert broken_at_the_end(tmp_path, undisturbed) == []
    assert events(tmp_path).count("retry_train") == 1


def test_c15_a_step_that_never_fits_ends_in_safe_mode_whatever_is_started_after_it(
    tmp_path: Path, undisturbed: Reference
) -> None:
    with pytest.raises(SafeModeError, match="train_oom of step 3"):
        run(tmp_path, trainer=sick(NO_ROOM, 3, times=99))
    history = history_of(tmp_path)
    assert (history.state, history.step, history.fault_count) == ("SAFE_MODE", 2, 2)
    assert broken(tmp_path, undisturbed) == []
    lines = runs.lines(tmp_path)
    for _ in range(2):
        with pytest.raises(SafeModeError):
            run(tmp_path)
    assert runs.lines(tmp_path) == lines, "a start that is refused says nothing"
    runs.ok("confirm", tmp_path, "--name", "someone", "--reason", "a larger machine")
    run(tmp_path)
    assert broken_at_the_end(tmp_path, undisturbed) == []


@pytest.mark.parametrize("error", [A_FIT, WorkerLost("the node is gone")])
def test_c05_a_batch_whose_worker_fails_or_is_lost_is_made_by_one_that_has_the_weights(
    tmp_path: Path, undisturbed: Reference, error: Exception
) -> None:
    """A lost one is replaced, and its successor begins with nothing."""
    run(tmp_path, rollout=failing(1, times=2, error=error))
    assert broken_at_the_end(tmp_path, undisturbed) == []
    assert events(tmp_path).count("retry_rollout") in (1, 2), "what a lost one says later is not heard"


@pytest.mark.parametrize("error", [ModelError("another architecture"), DamagedError("a shard differs from its hash")])
def test_bad_input_and_damage_that_a_worker_finds_end_the_run_and_are_not_retried(
    tmp_path: Path, undisturbed: Reference, error: VerlError
) -> None:
    with pytest.raises(type(error), match=error.what):
        run(tmp_path, rollout=failing(1, times=1, error=error))
    assert "retry_rollout" not in events(tmp_path)
    run(tmp_path)
    assert broken_at_the_end(tmp_path, undisturbed) == []


def test_c15_batches_that_never_come_end_in_safe_mode_within_their_budget(
    tmp_path: Path, undisturbed: Reference
) -> None:
    with pytest.raises(SafeModeError, match="rollout_error of batch"):
        run(tmp_path, rollout=failing(1, times=99))
    assert history_of(tmp_path).step == 1
    assert events(tmp_path).count("retry_rollout") <= 6, "three for each of two batches"
    assert broken(tmp_path, undisturbed) == []


@pytest.mark.parametrize("every", [1, 2, 9])
def test_a_training_group_that_lost_a_rank_goes_back_and_ends_the_same(
    tmp_path: Path, undisturbed: Reference, every: int
) -> None:
    """To the newest checkpoint, or to the base model where there is none yet; nothing is generated again."""
    interval = f"training.fault_tolerance.checkpoint_interval_steps={every}"
    run(tmp_path, trainer=sick(WorkerLost("a rank is gone"), 3, times=2), changes=[interval])
    assert broken_at_the_end(tmp_path, undisturbed) == []
    assert events(tmp_path).count("rebuild") == 2
    assert events(tmp_path).count("opened") == 1, "within the attempt"


def test_c15_a_training_group_that_keeps_losing_ranks_ends_in_safe_mode(tmp_path: Path, undisturbed: Reference) -> None:
    with pytest.raises(SafeModeError, match="worker_lost of step 3"):
        run(tmp_path, trainer=sick(WorkerLost("a rank is gone"), 3, times=99))
    assert broken(tmp_path, undisturbed) == []
    assert history_of(tmp_path).step == 2
    assert events(tmp_path).count("rebuild") == 2


# --- deadlines --------------------------------------------------------------------------------


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hangs waits for it, half a minute at most."""
    event = threading.Event()
    yield event
    event.set()


def test_c05_a_worker_that_hangs_is_replaced_when_its_deadline_has_passed(
    tmp_path: Path, undisturbed: Reference, gate: threading.Event
) -> None:
    hung: list[int] = []

    class Hung(LightRollout):
        def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
            if self.version() == 1 and not hung:
                hung.append(1)
                gate.wait(HANG_S)
            return super().generate(requests, sampling)

    begin = time.monotonic()
    run(tmp_path, rollout=Hung, changes=["training.fault_tolerance.rollout_timeout_sec=0.3"])
    assert time.monotonic() - begin < HANG_S / 3
    assert events(tmp_path).count("retry_rollout") == 1
    assert broken_at_the_end(tmp_path, undisturbed) == []


def test_c05_a_training_step_that_hangs_is_given_up_when_its_deadline_has_passed(
    tmp_path: Path, undisturbed: Reference, gate: threading.Event
) -> None:
    hung: list[int] = []

    class Hung(LightTrainer):
        def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
            if batch.step == 3 and not hung:
                hung.append(1)
                gate.wait(HANG_S)
            return super().update(batch, loss)

    begin = time.monotonic()
    run(tmp_path, trainer=Hung, changes=["training.fault_tolerance.train_timeout_sec=0.3"])
    assert time.monotonic() - begin < HANG_S / 3
    assert events(tmp_path).count("rebuild") == 1
    assert broken_at_the_end(tmp_path, undisturbed) == []


# --- what is loaded, and what is done again ---------------------------------------------------


class Forgetful(LightTrainer):
    """Takes over the optimizer's state, and leaves the weights as they were."""

    def load(self, component: str, read: Callable[[Slice], TensorChunk]) -> None:
        if component != "actor":
            super().load(component, read)


def test_c17_weights_that_do_not_come_back_are_an_error_and_nothing_is_trained(
    tmp_path: Path, undisturbed: Reference
) -> None:
    run(tmp_path, until=2)
    with pytest.raises(DamagedError, match="the loaded policy is"):
        run(tmp_path, trainer=Forgetful)
    assert history_of(tmp_path).step == 2
    run(tmp_path)
    assert broken_at_the_end(tmp_path, undisturbed) == []


def other(machine: str) -> type[LightTrainer]:
    """A trainer that rounds differently, on the machine of this name."""

    class Other(LightTrainer):
        def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
            metrics = super().update(batch, loss)
            self.state["w"] ^= 1
            return metrics

        def platform(self) -> PlatformKey:
            return PlatformKey(machine, "none", 1, "uint64", 1, "one")

    return Other


def forget_checkpoints_after(root: Path, step: int) -> None:
    for folder in root.glob("checkpoints/step_*"):
        if int(folder.name.removeprefix("step_")) > step:
            shutil.rmtree(folder)


def test_a_step_run_again_on_the_same_platform_must_give_the_same_policy(tmp_path: Path) -> None:
    run(tmp_path, until=3)
    forget_checkpoints_after(tmp_path, 1)
    with pytest.raises(DamagedError, match="run again, the step gave"):
        run(tmp_path, trainer=other("light"))
    assert "replay_differs" not in events(tmp_path)


def test_a_step_run_again_on_another_platform_supersedes_what_was_saved_after_it(tmp_path: Path) -> None:
    run(tmp_path, until=3)
    result = run(tmp_path, trainer=other("else"), resume="1")
    assert events(tmp_path).count("replay_differs") == 2
    assert {path.name for path in tmp_path.glob("checkpoints/.condemned/*")} == {"step_000002.2", "step_000003.2"}
    history = history_of(tmp_path)
    assert (history.state, history.policy_digest) == ("DONE", result.policy_digest)
    assert sorted(history.checkpoints)[-1] == STEPS


def damage(file: Path) -> None:
    """Another reward, as plausible as the one that was there."""
    file.write_bytes(file.read_bytes().replace(b'"reward":0', b'"reward":1', 1))


def test_a_batch_that_was_damaged_is_made_again_and_never_trained_on(tmp_path: Path, undisturbed: Reference) -> None:
    run(tmp_path, until=2)
    forget_checkpoints_after(tmp_path, 0)
    for batch in (0, 1):
        damage(tmp_path / f"rollouts/epoch_0/batch_{batch}/samples.jsonl")
    run(tmp_path)
    assert events(tmp_path).count("condemned") == 2
    assert broken_at_the_end(tmp_path, undisturbed) == []
    assert len(list(tmp_path.glob("rollouts/.condemned/*/samples.jsonl"))) == 2


def test_a_batch_that_is_made_again_on_the_same_platform_must_be_the_same(tmp_path: Path) -> None:
    run(tmp_path, until=2)
    forget_checkpoints_after(tmp_path, 0)
    damage(tmp_path / "rollouts/epoch_0/batch_1/samples.jsonl")

    class Other(LightRollout):
        def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
            found = super().generate(requests, sampling)
            return [[replace(one, logprobs=one.logprobs - 1) for one in group] for group in found]

    with pytest.raises(DamagedError, match="made again, the batch is"):
        run(tmp_path, rollout=Other)


def test_weights_that_are_not_those_of_the_version_are_never_sampled_from(tmp_path: Path) -> None:
    """A worker that keeps its old weights says so, and is replaced until its budget is spent."""

    class Stuck(LightRollout):
        def load_weights(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
            if version != 2:
                super().load_weights(version, weights)

    with pytest.raises(SafeModeError, match="rollout_error"):
        run(tmp_path, rollout=Stuck)
    assert history_of(tmp_path).step == 2
