"""Whole runs in a few hundredths of a second: the real controller, state log, writer and checkpointer, and no model.

The engines train a few integers. Every bit of them depends on all that was ever consumed, in which order, and every
sample on the weights that made it: a batch skipped, repeated, mixed or made by a stale policy shows in the digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from verl_core.algorithms.grpo import GrpoConfig, build_grpo
from verl_core.assemble import assemble
from verl_core.checkpoint.sharded import ShardedConfig, build_sharded
from verl_core.config import read_config
from verl_core.config.load import LoadedConfig
from verl_core.data.fingerprint import Entry, of_entries, sha256_of
from verl_core.data.prompts import PromptSet
from verl_core.data.tokenizer import Tokenizer
from verl_core.draws import philox, seed_of
from verl_core.inputs import Inputs, Start
from verl_core.observers import Observers
from verl_core.plugins import Loaded
from verl_core.protocols import FileStorage, LossFn
from verl_core.registry import (
    ALGORITHM,
    CHECKPOINTER,
    CLUSTER,
    RECOVERY,
    REWARD,
    ROLLOUT_ENGINE,
    STORAGE,
    TRAIN_ENGINE,
    WRITER,
    Registry,
)
from verl_core.rollout.writer import AtomicConfig, build_atomic
from verl_core.types import (
    BuildContext,
    Completion,
    GenerateRequest,
    PlatformKey,
    Prompt,
    RunFinished,
    Sampling,
    Slice,
    TensorChunk,
    TensorSums,
    TrainBatch,
    UpdateMetrics,
)
from verl_core_engines.inline import InlineConfig, build_inline
from verl_core_recovery.rebuild import RebuildConfig, build_rebuild
from verl_core_recovery.retry import RetryConfig, build_retry
from verl_core_storage.local import LocalConfig, LocalStorage

SIZE = 6  # numbers of the policy
PROMPTS = 11  # at two a batch and two batches a step: epochs of three steps, the last one ragged
CONFIG: dict[str, object] = {
    "seed": 3,
    "model": {"actor": {"path": "/light/model"}, "reward": {"name": "light"}},
    "data": {"task": "light", "max_response_length": 5},
    "rollout": {"prompts_per_batch": 2, "n": 2, "name": "light"},
    "training": {"prompts_per_step": 4, "name": "light", "fault_tolerance": {"checkpoint_interval_steps": 1}},
}
Vector = npt.NDArray[np.uint64]
T = TypeVar("T")
_LANES = np.arange(SIZE, dtype=np.uint64)


# --- engines ---------------------------------------------------------------------------------


@dataclass
class LightConfig:
    """Nothing to set."""


class LightTrainer:
    """A ``TrainEngine``: two vectors of integers that wrap around, mixed with a hash of each batch."""

    def __init__(self, config: LightConfig, context: BuildContext) -> None:
        self._seed = context.seed
        self.state = {"w": philox(np.array([1], np.uint64), _LANES), "m": np.zeros(SIZE, np.uint64)}

    def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
        assert batch.advantages is not None
        of_samples = (*batch.prompt_ids, *batch.response_ids, *batch.logprobs)
        arrays = (*of_samples, batch.rewards, batch.advantages, batch.groups, batch.policy_versions)
        content = blake3(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()
        draw = philox(np.array([seed_of(self._seed, batch.step, content)], np.uint64), _LANES)
        self.state["m"] = self.state["m"] * np.uint64(3) + draw
        self.state["w"] = (self.state["w"] * np.uint64(5)) ^ self.state["m"]
        tokens = sum(map(len, batch.response_ids))
        return UpdateMetrics(0.5, 1.0, 0.1, 0.0, 0.0, 0.0, tokens)

    def sums(self) -> Sequence[TensorSums]:
        w, places = self.state["w"], _LANES + np.uint64(1)
        return [TensorSums("w", int(w.sum()), int((w * places).sum()))]

    def slices(self, component: str) -> Sequence[Slice]:
        return [Slice(_TENSOR[component], (0,), (SIZE,))]

    def shards(self, component: str) -> Iterator[TensorChunk]:
        for piece in self.slices(component):
            yield TensorChunk(piece.name, "U64", (SIZE,), (0,), (SIZE,), self.state[piece.name].tobytes())

    def load(self, component: str, read: Callable[[Slice], TensorChunk]) -> None:
        for piece in self.slices(component):
            self.state[piece.name] = np.frombuffer(bytes(read(piece).data), np.uint64).copy()

    def export_weights(self) -> Iterator[tuple[str, Any]]:
        yield "w", self.state["w"].copy()

    def rng_state(self) -> bytes:
        return b""

    def platform(self) -> PlatformKey:
        return PlatformKey("light", "none", 1, "uint64", 1, "one")

    def files(self) -> Mapping[str, bytes]:
        return {"config.json": b"{}"}

    def close(self) -> None: ...


_TENSOR = {"actor": "w", "optimizer": "m"}


class LightRollout:
    """A ``RolloutEngine``: tokens and log-probabilities are draws keyed by (weights, sample seed)."""

    def __init__(self, config: LightConfig, context: BuildContext) -> None:
        self._weights: Vector | None = None
        self._version = -1

    def load_weights(self, version: int, weights: Iterable[tuple[str, Any]]) -> None:
        self._weights, self._version = dict(weights)["w"], version

    def version(self) -> int:
        return self._version

    def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        return [[self._one(request, seed, sampling) for seed in request.seeds] for request in requests]

    def _one(self, request: GenerateRequest, seed: int, sampling: Sampling) -> Completion:
        assert self._weights is not None
        key = seed_of(seed, *self._weights.tolist(), *request.prompt_ids)
        draws = philox(np.array([key], np.uint64), np.arange(sampling.max_new_tokens, dtype=np.uint64))
        length = 1 + int(draws[-1] % np.uint64(sampling.max_new_tokens))
        ids = (draws[:length] % np.uint64(26)).astype(np.int32)
        logprobs = -(draws[:length] >> np.uint64(54)).astype(np.float32) / np.float32(1024)
        return Completion(ids, logprobs, "stop")

    def close(self) -> None: ...


@dataclass
class LightReward:
    """How near the response's letters add up to the prompt's."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [(sum(map(ord, r)) + p.row) % 8 / 8 for p, r in zip(prompts, responses, strict=True)]


class _Letters:
    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(chr(97 + i) for i in ids)


# --- runs ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LightInputs(Inputs):
    """The inputs of a run without files of data and model."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(Path("/light/model"), 0, (1,), "blake3:light", cast(Any, _Letters()))

    @cached_property
    def train(self) -> PromptSet:
        prompts = tuple(Prompt(row, f"prompt {row}", "", (row, 7)) for row in range(PROMPTS))
        return PromptSet(prompts, of_entries([Entry("light", PROMPTS, sha256_of(b"light"))]))


def run(
    root: Path,
    steps: int,
    *,
    until: int | None = None,
    changes: Sequence[str] = (),
    storage: Callable[[LocalStorage], FileStorage] = lambda inner: inner,
    trainer: type[LightTrainer] = LightTrainer,
    rollout: type[LightRollout] = LightRollout,
    resume: str = "auto",
) -> RunFinished:
    """Begin the run at ``root`` or go on with it; ``storage`` is put around each storage that it opens."""
    registry = Registry()
    registry.register(STORAGE, "local", LocalConfig, lambda _, context: storage(LocalStorage(context.uri)))
    registry.register(CLUSTER, "inline", InlineConfig, build_inline)
    registry.register(RECOVERY, "retry", RetryConfig, build_retry)
    registry.register(RECOVERY, "rebuild", RebuildConfig, build_rebuild)
    registry.register(WRITER, "atomic", AtomicConfig, build_atomic)
    registry.register(CHECKPOINTER, "sharded", ShardedConfig, build_sharded)
    registry.register(ALGORITHM, "grpo", GrpoConfig, build_grpo)
    registry.register(TRAIN_ENGINE, "light", LightConfig, trainer)
    registry.register(ROLLOUT_ENGINE, "light", LightConfig, rollout)
    registry.register(REWARD, "light", LightReward, lambda reward, _: reward)
    inputs = LightInputs(
        _config(steps, tuple(changes)), Loaded(registry, Observers(), ()), Start(str(root), resume, until)
    )
    return assemble(inputs).run()


class _Config(LoadedConfig):
    """What it says of itself is worked out once: that takes longer than the rest of a run."""

    def config_text(self) -> str:
        return _once(("text", id(self)), super().config_text)

    def changed_since(self, saved: str) -> list[str]:
        return _once((saved, id(self)), partial(super().changed_since, saved))


_known: dict[tuple[str, int], Any] = {}


def _once(name: tuple[str, int], work: Callable[[], T]) -> T:
    if name not in _known:
        _known[name] = work()
    found: T = _known[name]
    return found


@cache
def _config(steps: int, changes: tuple[str, ...]) -> _Config:
    loaded = read_config(None, [*changes, f"total_steps={steps}"], base=CONFIG)
    return _Config(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})
