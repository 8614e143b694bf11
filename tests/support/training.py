"""A step's worth of samples, and the state of a training engine as a test wants to see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from verl_core.algorithms.grpo import Grpo, GrpoConfig
from verl_core.protocols import LossFn
from verl_core.types import Slice, TensorChunk, TrainBatch
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine, build

from tests.support.models import VOCABULARY, context_of

LOSS: LossFn = Grpo(GrpoConfig()).loss
Result = tuple[torch.Tensor, Mapping[str, torch.Tensor]]
PLAIN = FsdpConfig(pack_groups=False)


def batch_of(step: int = 1) -> TrainBatch:
    """Three groups of three ragged responses, and log-probabilities somewhere near the policy's."""
    rng = np.random.default_rng(step)
    prompts = [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in (4, 7, 2)]
    responses = [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in (3, 4, 2, 8, 5, 1, 5, 3, 3)]
    size = len(responses)
    return TrainBatch(
        step,
        tuple(prompts[i // 3] for i in range(size)),
        tuple(responses),
        tuple((-4 + rng.standard_normal(len(r)) * 0.1).astype(np.float32) for r in responses),
        rng.random(size),
        np.repeat(np.arange(3), 3),
        np.zeros(size, np.int64),
        rng.standard_normal(size),
    )


def engine_of(path: str, config: FsdpConfig | None = None, **changes: Any) -> FsdpEngine:
    return build(config or FsdpConfig(), context_of(path, **changes))


def saved(engine: FsdpEngine) -> dict[tuple[str, str], TensorChunk]:
    return {(c, chunk.name): chunk for c in ("actor", "optimizer") for chunk in engine.shards(c)}


def restore(engine: FsdpEngine, state: Mapping[tuple[str, str], TensorChunk]) -> None:
    def reader(component: str) -> Callable[[Slice], TensorChunk]:
        return lambda piece: state[component, piece.name]

    for component in ("actor", "optimizer"):
        engine.load(component, reader(component))


def as_bytes(state: Mapping[tuple[str, str], TensorChunk]) -> dict[tuple[str, str], bytes]:
    return {key: bytes(chunk.data) for key, chunk in state.items()}
