"""The data flow of a step, in the manner of a single controller: generate → reward | advantage → update.

The two halves run on different workers; what ``collect`` returns is committed before ``learn`` sees it. An algorithm
is one file: its two formulas, and, as a subclass of ``OnPolicy``, either half of the flow where it wants another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np

from ..draws import seed_of
from ..errors import WorkerError
from ..protocols import Algorithm, Reward, RolloutEngine, TrainEngine
from ..types import BatchSpec, Completion, GenerateRequest, Prompt, Sample, Sampling, TrainBatch, UpdateMetrics

Purpose = Literal["train", "eval"]


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class RolloutRoles:
    """Who takes part where samples are made."""

    engine: RolloutEngine
    tokenizer: Decoder
    reward: Reward
    sampling: Sampling
    run_seed: int

    def generate(self, spec: BatchSpec, prompts: Sequence[Prompt], purpose: Purpose) -> list[Sample]:
        """``sampling.n`` samples of each prompt, in order, not scored yet."""
        requests = [
            GenerateRequest(p.ids, tuple(self._seed(spec, p.row, i, purpose) for i in range(self.sampling.n)))
            for p in prompts
        ]
        completions = self.engine.generate(requests, self.sampling)
        return [
            self._sample(prompt, request.seeds[i], i, completion)
            for prompt, request, found in zip(prompts, requests, completions, strict=True)
            for i, completion in enumerate(found)
        ]

    def score(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their rewards. Raises WorkerError for a reward that is missing or not finite."""
        by_row = {p.row: p for p in prompts}
        rewards = self.reward.score([by_row[s.row] for s in samples], [s.response for s in samples])
        if len(rewards) != len(samples):
            raise WorkerError(f"{len(rewards)} rewards for {len(samples)} samples", where="reward")
        for sample, reward in zip(samples, rewards, strict=True):
            if not math.isfinite(reward):
                raise WorkerError(f"reward {reward} is not a finite number", where=f"reward, row {sample.row}")
        return [replace(s, reward=float(r)) for s, r in zip(samples, rewards, strict=True)]

    def _seed(self, spec: BatchSpec, row: int, index: int, purpose: Purpose) -> int:
        return seed_of(self.run_seed, purpose, spec.key.epoch, row, spec.policy_version, index)

    def _sample(self, prompt: Prompt, seed: int, index: int, completion: Completion) -> Sample:
        return Sample(
            row=prompt.row,
            index=index,
            seed=seed,
            prompt=prompt.text,
            response=self.tokenizer.decode(completion.ids.tolist()),
            prompt_ids=np.array(prompt.ids, np.int32),
            response_ids=completion.ids,
            logprobs=completion.logprobs,
            finish=completion.finish,
            reward=0.0,
        )


@dataclass(frozen=True, slots=True)
class TrainRoles:
    """Who takes part where the policy learns."""

    engine: TrainEngine
    algorithm: Algorithm

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        return replace(batch, advantages=self.algorithm.advantages(batch.rewards, batch.groups))

    def update(self, batch: TrainBatch) -> UpdateMetrics:
        return self.engine.update(batch, self.algorithm.loss)


class Flow(Protocol):
    """Two halves of a step."""

    def collect(
        self, roles: RolloutRoles, spec: BatchSpec, prompts: Sequence[Prompt], purpose: Purpose
    ) -> list[Sample]:
        """Make and score the samples of a batch: a pure function of the policy and of its arguments."""
        ...

    def learn(self, roles: TrainRoles, batch: TrainBatch) -> UpdateMetrics:
        """One training step on committed samples."""
        ...


class OnPolicy:
    """The usual flow. Base of algorithms that keep at least one half of it."""

    def collect(
        self, roles: RolloutRoles, spec: BatchSpec, prompts: Sequence[Prompt], purpose: Purpose
    ) -> list[Sample]:
        return roles.score(prompts, roles.generate(spec, prompts, purpose))

    def learn(self, roles: TrainRoles, batch: TrainBatch) -> UpdateMetrics:
        return roles.update(roles.advantages(batch))


def flow_of(algorithm: Algorithm) -> Flow:
    """The algorithm's own flow when it has one, else the usual one."""
    return algorithm if isinstance(algorithm, OnPolicy) else OnPolicy()
