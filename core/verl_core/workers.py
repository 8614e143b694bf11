"""The two kinds of worker that a cluster hosts: one generates and commits batches, one trains on them.

What goes in and out is small (see the records below); tokens travel through the batch store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .algorithms.flow import Flow, RolloutRoles, TrainRoles
from .checkpoint.digest import policy_digest
from .errors import VerlError
from .protocols import CheckpointReader, Reward
from .types import BatchKey, BatchRef, BatchSpec, PlatformKey, Prompt, Sample, StepResult, TensorChunk, TrainBatch

if TYPE_CHECKING:
    import torch

COMPONENTS = ("actor", "optimizer")


class BatchStore(Protocol):
    def commit(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> BatchRef: ...
    def load(self, ref: BatchRef) -> list[Sample]: ...


@dataclass(frozen=True, slots=True)
class Weights:
    version: int
    tensors: Iterable[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class StepCall:
    step: int
    refs: tuple[BatchRef, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    policy_digest: str
    platform: PlatformKey


@dataclass(frozen=True, slots=True)
class RankState:
    """A copy of one rank's state."""

    tensors: Mapping[str, Sequence[TensorChunk]]
    files: Mapping[str, bytes]
    rng: bytes
    policy_digest: str


class RolloutWorker:
    """Methods: ``weights`` (Weights → version), ``generate`` (BatchSpec → BatchRef), ``evaluate`` (→ float)."""

    def __init__(
        self,
        name: str,
        flow: Flow,
        roles: RolloutRoles,
        store: BatchStore,
        train: Mapping[int, Prompt],
        val: Mapping[int, Prompt],
        run_seed: int,
        former: Callable[[int], Reward] | None = None,
    ) -> None:
        """``former``: the reward of so many swaps ago, for batches that are made again."""
        self._name, self._flow, self._roles, self._store = name, flow, roles, store
        self._former = former
        self._train, self._val, self._seed = train, val, run_seed

    def call(self, method: str, argument: object) -> object:
        if method == "weights" and isinstance(argument, Weights):
            self._roles.engine.load_weights(argument.version, argument.tensors)
            return self._roles.engine.version()
        if method == "generate" and isinstance(argument, BatchSpec):
            self._check_version(argument)
            roles = self._roles
            if argument.former and self._former is not None:
                roles = replace(roles, reward=self._former(argument.former))
            samples = self._flow.collect(roles, argument, [self._train[r] for r in argument.rows], "train")
            return self._store.commit(argument, samples, worker=self._name, seed=self._seed)
        if method == "evaluate" and isinstance(argument, BatchSpec):
            self._check_version(argument)
            samples = self._flow.collect(self._roles, argument, [self._val[r] for r in argument.rows], "eval")
            return float(np.mean([s.reward for s in samples]))
        raise VerlError(f"unknown call {method!r}", where=self._name)

    def _check_version(self, spec: BatchSpec) -> None:
        have = self._roles.engine.version()
        if have != spec.policy_version:
            raise VerlError(f"asked for policy {spec.policy_version}, holds {have}", where=f"{self._name}, {spec.key}")

    def close(self) -> None:
        self._roles.engine.close()


class TrainWorker:
    """Methods: ``load`` (CheckpointReader or None → Loaded), ``step`` (StepCall → StepResult), ``weights`` (→ Weights),
    ``state`` (→ RankState)."""

    def __init__(
        self,
        name: str,
        flow: Flow,
        roles: TrainRoles,
        store: BatchStore,
        files: Mapping[str, bytes],
    ) -> None:
        self._name, self._flow, self._roles, self._store = name, flow, roles, store
        self._files = files
        self._version, self._digest = 0, ""

    def call(self, method: str, argument: object) -> object:
        if method == "step" and isinstance(argument, StepCall):
            return self._step(argument)
        calls: dict[str, Callable[[object], object]] = {
            "load": self._load,
            "weights": lambda _: Weights(self._version, self._roles.engine.export_weights()),
            "state": lambda _: self._state(),
        }
        if method not in calls:
            raise VerlError(f"unknown call {method!r}", where=self._name)
        return calls[method](argument)

    def _load(self, reader: object) -> Loaded:
        engine = self._roles.engine
        if reader is not None:
            checkpoint: CheckpointReader = reader  # type: ignore[assignment]
            for component in COMPONENTS:
                engine.load(component, lambda piece, c=component: checkpoint.read(c, piece))  # type: ignore[misc]
            self._version = checkpoint.step
        self._digest = policy_digest(engine.sums())
        return Loaded(self._digest, engine.platform())

    def _step(self, call: StepCall) -> StepResult:
        if self._version >= call.step:
            raise VerlError(f"step {call.step} was taken already: the policy is {self._version}", where=self._name)
        begin = time.perf_counter()
        batch = train_batch(call.step, [(ref, self._store.load(ref)) for ref in call.refs])
        metrics = self._flow.learn(self._roles, batch)
        self._version = call.step
        self._digest = policy_digest(self._roles.engine.sums())
        seconds = time.perf_counter() - begin
        return StepResult(call.step, metrics, self._digest, float(batch.rewards.mean()), seconds)

    def _state(self) -> RankState:
        engine = self._roles.engine
        tensors = {component: list(engine.shards(component)) for component in COMPONENTS}
        files = {f"actor/{name}": data for name, data in {**engine.files(), **self._files}.items()}
        return RankState(tensors, files, engine.rng_state(), self._digest)

    def close(self) -> None:
        self._roles.engine.close()


def train_batch(step: int, batches: Sequence[tuple[BatchRef, Sequence[Sample]]]) -> TrainBatch:
    """The samples of a step in schedule order; samples of one prompt occurrence share a group number."""
    groups: dict[tuple[BatchKey, int], int] = {}
    numbers, versions = [], []
    samples = [(ref, s) for ref, found in batches for s in found]
    for ref, sample in samples:
        numbers.append(groups.setdefault((ref.key, sample.row), len(groups)))
        versions.append(ref.policy_version)
    return TrainBatch(
        step,
        tuple(s.prompt_ids for _, s in samples),
        tuple(s.response_ids for _, s in samples),
        tuple(s.logprobs for _, s in samples),
        np.array([s.reward for _, s in samples], np.float64),
        np.array(numbers, np.int64),
        np.array(versions, np.int64),
    )
