"""GRPO's two formulas, and the flow around them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl_core.algorithms.flow import OnPolicy, RolloutRoles, TrainRoles, flow_of
from verl_core.algorithms.grpo import Grpo, GrpoConfig, build_grpo
from verl_core.draws import seed_of
from verl_core.errors import ConfigError, WorkerError
from verl_core.types import (
    BatchKey,
    BatchSpec,
    BuildContext,
    Completion,
    GenerateRequest,
    Prompt,
    Sampling,
    TrainBatch,
    UpdateMetrics,
)

Floats = npt.NDArray[np.float64]


def advantages(rewards: Sequence[float], groups: Sequence[int], **options: bool) -> list[float]:
    found = Grpo(GrpoConfig(**options)).advantages(np.array(rewards, np.float64), np.array(groups, np.int64))
    return [float(x) for x in found]


def test_advantages_are_centred_and_scaled_within_each_group() -> None:
    found = advantages([1, 0, 0, 1, 5, 7], [3, 3, 3, 3, 8, 8])
    assert found == pytest.approx([0.8659, -0.8659, -0.8659, 0.8659, -0.7071, 0.7071], abs=1e-3)
    assert advantages([1, 0, 0, 1, 5, 7], [3, 3, 3, 3, 8, 8], normalize_std=False) == [0.5, -0.5, -0.5, 0.5, -1.0, 1.0]


@given(st.floats(-1e6, 1e6), st.integers(1, 9), st.booleans())
def test_equal_rewards_give_zero_exactly(reward: float, size: int, normalize_std: bool) -> None:
    assert advantages([reward] * size, [0] * size, normalize_std=normalize_std) == [0.0] * size


def test_members_of_a_group_need_not_be_neighbours() -> None:
    assert advantages([1, 5, 0, 7], [0, 1, 0, 1], normalize_std=False) == [0.5, -1.0, -0.5, 1.0]


@pytest.mark.parametrize(("advantage", "bound"), [(1.0, 1.3), (-1.0, 0.8)])
def test_the_loss_stops_rewarding_beyond_the_clip_ratio(advantage: float, bound: float) -> None:
    loss = Grpo(GrpoConfig(clip_ratio_low=0.2, clip_ratio_high=0.3)).loss
    ratio = torch.tensor([[0.5, 0.9, 1.0, 1.1, 2.0]])
    logp = ratio.log().requires_grad_()
    value, found = loss(logp, torch.zeros_like(ratio), torch.tensor([advantage]), torch.ones_like(ratio))
    torch.autograd.backward(value.sum())
    expected = [-min(r * advantage, min(max(r, 0.8), 1.3) * advantage) for r in ratio[0].tolist()]
    assert value[0].tolist() == pytest.approx(expected)
    beyond = [r > bound if advantage > 0 else r < bound for r in ratio[0].tolist()]
    assert found["clip_fraction"][0].tolist() == [float(b) for b in beyond]
    assert logp.grad is not None
    assert [g == 0 for g in logp.grad[0].tolist()] == beyond


def test_at_ratio_one_the_gradient_is_minus_the_advantage() -> None:
    logp = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    value, _ = Grpo(GrpoConfig()).loss(logp, logp.detach(), torch.tensor([0.7]), torch.ones(1, 2))
    torch.autograd.backward(value.sum())
    assert logp.grad is not None
    assert logp.grad[0].tolist() == pytest.approx([-0.7, -0.7])


@pytest.mark.parametrize(
    "config", [GrpoConfig(clip_ratio_low=1.0), GrpoConfig(clip_ratio_high=-0.1), GrpoConfig(std_eps=0.0)]
)
def test_options_that_cannot_be_meant_are_refused(config: GrpoConfig) -> None:
    with pytest.raises(ConfigError):
        build_grpo(config, BuildContext())


# --- the flow --------------------------------------------------------------------------------


class Echo:
    """A rollout engine that answers with the low bits of the seed."""

    def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        return [
            [Completion(np.array([s % 97], np.int32), np.array([-0.5], np.float32), "stop") for s in r.seeds]
            for r in requests
        ]

    def load_weights(self, version: int, weights: object) -> None: ...
    def version(self) -> int:
        return 0

    def close(self) -> None: ...


class Digits:
    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(str, ids))


class Length:
    """Rewards the answer's length times the prompt's row."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [self.factor * p.row * len(r) for p, r in zip(prompts, responses, strict=True)]


SPEC = BatchSpec(BatchKey(2, 0), 6, (4, 9))
PROMPTS = [Prompt(4, "a", "", (1, 2)), Prompt(9, "b", "", (3,))]


def roles(reward: Length) -> RolloutRoles:
    return RolloutRoles(Echo(), Digits(), reward, Sampling(n=2), run_seed=11)


def test_collect_scores_n_samples_of_each_prompt_under_seeds_of_their_own() -> None:
    samples = OnPolicy().collect(roles(Length()), SPEC, PROMPTS, "train")
    assert [(s.row, s.index) for s in samples] == [(4, 0), (4, 1), (9, 0), (9, 1)]
    assert [s.seed for s in samples] == [seed_of(11, "train", 2, s.row, 6, s.index) for s in samples]
    assert [s.response for s in samples] == [str(s.seed % 97) for s in samples]
    assert [s.reward for s in samples] == [float(s.row * len(s.response)) for s in samples]
    assert samples[2].prompt_ids.tolist() == [3]
    evaluated = OnPolicy().collect(roles(Length()), SPEC, PROMPTS, "eval")
    assert not {s.seed for s in samples} & {s.seed for s in evaluated}


def test_a_reward_that_is_not_finite_is_an_error_that_names_the_row() -> None:
    with pytest.raises(WorkerError, match="row 4"):
        OnPolicy().collect(roles(Length(math.nan)), SPEC, PROMPTS, "train")


class Recorder:
    """The part of a train engine that ``learn`` uses."""

    def __init__(self) -> None:
        self.seen: list[TrainBatch] = []

    def update(self, batch: TrainBatch, loss: object) -> UpdateMetrics:
        self.seen.append(batch)
        return UpdateMetrics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, len(batch.rewards))


def train_batch() -> TrainBatch:
    ones = tuple(np.ones(1, np.int32) for _ in range(4))
    logprobs = tuple(np.zeros(1, np.float32) for _ in range(4))
    groups = np.array([0, 0, 1, 1], np.int64)
    return TrainBatch(1, ones, ones, logprobs, np.array([1.0, 0.0, 1.0, 1.0]), groups, groups)


def test_learn_updates_on_the_advantages_of_the_algorithm() -> None:
    engine, algorithm = Recorder(), Grpo(GrpoConfig(normalize_std=False))
    flow_of(algorithm).learn(TrainRoles(engine, algorithm), train_batch())  # type: ignore[arg-type]
    assert engine.seen[0].advantages is not None
    assert engine.seen[0].advantages.tolist() == [0.5, -0.5, 0.0, 0.0]


class Formulas:
    """An algorithm that is two formulas and nothing else."""

    def advantages(self, rewards: Floats, groups: npt.NDArray[np.int64]) -> Floats:
        return rewards * 2

    loss = Grpo(GrpoConfig()).loss


class Best(Grpo):
    """An algorithm of one file: it replaces one half of the flow, and trains on positive advantages only."""

    def learn(self, roles: TrainRoles, batch: TrainBatch) -> UpdateMetrics:
        scored = roles.advantages(batch)
        assert scored.advantages is not None
        kept = np.flatnonzero(scored.advantages > 0)
        return roles.update(
            TrainBatch(
                batch.step,
                tuple(batch.prompt_ids[i] for i in kept),
                tuple(batch.response_ids[i] for i in kept),
                tuple(batch.logprobs[i] for i in kept),
                batch.rewards[kept],
                batch.groups[kept],
                batch.policy_versions[kept],
                scored.advantages[kept],
            )
        )


def test_an_algorithm_without_a_flow_gets_the_usual_one() -> None:
    engine, algorithm = Recorder(), Formulas()
    flow_of(algorithm).learn(TrainRoles(engine, algorithm), train_batch())  # type: ignore[arg-type]
    assert engine.seen[0].advantages is not None
    assert engine.seen[0].advantages.tolist() == [2.0, 0.0, 2.0, 2.0]


def test_an_algorithm_may_replace_a_half_of_the_flow() -> None:
    engine, algorithm = Recorder(), Best(GrpoConfig(normalize_std=False))
    assert flow_of(algorithm).learn(TrainRoles(engine, algorithm), train_batch()).tokens == 1  # type: ignore[arg-type]
    assert engine.seen[0].rewards.tolist() == [1.0]
