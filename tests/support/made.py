"""Small batches and training states, made from numbers: equal arguments, equal bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.rollout.writer import AtomicWriter
from verl_core.types import BatchKey, BatchSpec, CheckpointState, RunIdentity, Sample, TensorChunk
from verl_core_storage.local import LocalStorage


def spec(batch: int = 0, *, epoch: int = 0, rows: tuple[int, ...] = (4, 2), version: int = 0) -> BatchSpec:
    return BatchSpec(BatchKey(epoch, batch), version, rows)


def samples(of: BatchSpec, *, n: int = 2, seed: int = 0) -> list[Sample]:
    return [
        Sample(
            row=row,
            index=index,
            seed=(1 << 63) + 1000 * seed + 10 * row + index,
            prompt=f"sort {row}\n",
            response=f"é{index}\u2028",
            prompt_ids=np.array([row, 1], np.int32),
            response_ids=np.array([index, -1, 2**31 - 1], np.int32),
            logprobs=np.array([-0.1, -1e-30, -2.5 * index], np.float32),
            finish="stop",
            reward=0.1 * row + index,
        )
        for row in of.rows
        for index in range(n)
    ]


def writer(root: Path, *, run: str = "run", branch: int = 0, attempt: int = 0) -> AtomicWriter:
    return AtomicWriter(LocalStorage(str(root)), RunIdentity(run, branch, attempt), clock=lambda: 1.8e9)


def checkpointer(root: Path, *, run: str = "run", branch: int = 0, attempt: int = 0) -> ShardedCheckpointer:
    return ShardedCheckpointer(LocalStorage(str(root)), RunIdentity(run, branch, attempt), clock=lambda: 1.8e9)


def pieces(name: str, whole: np.ndarray, cuts: int, dtype: str = "F32") -> list[TensorChunk]:
    """A tensor cut along its first dimension, for as many ranks."""
    starts = np.cumsum([0] + [len(part) for part in np.array_split(whole, cuts)])
    return [
        TensorChunk(
            name,
            dtype,
            whole.shape,
            (int(start), *[0] * (whole.ndim - 1)),
            part.shape,
            np.ascontiguousarray(part).tobytes(),
        )
        for start, part in zip(starts, np.array_split(whole, cuts), strict=False)
    ]


def weights(step: int, shape: tuple[int, ...] = (6, 4)) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + step).astype(np.float32)


def state(step: int, *, ranks: int = 2, attempt: int = 0) -> CheckpointState:
    scalar = TensorChunk("step", "I64", (), (), (), np.int64(step).tobytes())
    actor = pieces("w", weights(step), ranks)
    moment = pieces("m", weights(step) / 7, ranks)
    return CheckpointState(
        step=step,
        branch=0,
        attempt=attempt,
        tensors={"actor": [[chunk] for chunk in actor], "optimizer": [[chunk, scalar] for chunk in moment]},
        files={"rng_state.msgpack": b"rng %d" % step, "actor/config.json": b"{}", "config.yaml": b"seed: 0\n"},
        facts={"policy_digest": f"sums:{step}", "reward_mean": 0.5},
    )
