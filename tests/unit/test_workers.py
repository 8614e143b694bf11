"""The two kinds of worker by themselves: groups, versions, and calls that come twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from verl_core.algorithms.flow import TrainRoles
from verl_core.algorithms.grpo import Grpo, GrpoConfig
from verl_core.errors import VerlError
from verl_core.types import BatchKey, BatchRef, BatchSpec, BuildContext, Sample
from verl_core.workers import StepCall, TrainWorker, train_batch

from tests.support.light import LightConfig, LightTrainer
from tests.support.made import samples, spec


def ref(of: BatchSpec) -> BatchRef:
    return BatchRef(of.key, 0, 1, of.policy_version, "blake3:x", 4, 12, 0.5, of.rows)


class Store:
    """Batches in memory."""

    def __init__(self, held: dict[BatchKey, list[Sample]]) -> None:
        self.held = held

    def load(self, ref: BatchRef) -> list[Sample]:
        return self.held[ref.key]

    def commit(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> BatchRef:
        raise NotImplementedError


def test_samples_of_one_prompt_occurrence_share_a_group_and_no_others_do() -> None:
    """The same row in two batches is two occurrences, as it is in two epochs."""
    first, second = spec(0, rows=(4, 2)), spec(1, rows=(2, 7), version=3)
    batch = train_batch(4, [(ref(of), samples(of, n=3)) for of in (first, second)])
    assert batch.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [ids[0] for ids in batch.prompt_ids] == [4] * 3 + [2] * 3 + [2] * 3 + [7] * 3
    assert batch.policy_versions.tolist() == [0] * 6 + [3] * 6
    assert batch.rewards.tolist() == [s.reward for of in (first, second) for s in samples(of, n=3)]


class Flow:
    """The usual flow, counting."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def learn(self, roles: TrainRoles, batch: Any) -> Any:
        self.steps.append(batch.step)
        return roles.update(roles.advantages(batch))


def trainer() -> tuple[TrainWorker, Flow, LightTrainer]:
    of, flow = spec(0), Flow()
    engine = LightTrainer(LightConfig(), BuildContext(seed=1))
    roles = TrainRoles(cast(Any, engine), Grpo(GrpoConfig()))
    return TrainWorker("train-0", cast(Any, flow), roles, Store({of.key: samples(of)}), {}), flow, engine


def test_a_step_that_was_taken_is_never_taken_again() -> None:
    worker, flow, engine = trainer()
    worker.call("step", StepCall(1, (ref(spec(0)),)))
    after = engine.state["w"].copy()
    with pytest.raises(VerlError, match="step 1 was taken already"):
        worker.call("step", StepCall(1, (ref(spec(0)),)))
    assert flow.steps == [1]
    assert np.array_equal(engine.state["w"], after)


def test_a_call_that_is_not_known_is_an_error_that_names_the_worker() -> None:
    worker, _, _ = trainer()
    with pytest.raises(VerlError, match="train-0: unknown call 'dance'"):
        worker.call("dance", None)
