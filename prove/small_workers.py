"""Workers, cluster and writer thread of a run that takes a few milliseconds and is the same every time.

A policy is eight bytes. Samples depend on the policy that drew them, the policy on all that it was trained on; so a
batch that is skipped, repeated or stale shows in the digest. Everything happens on the calling thread, in the order in
which the product's writer thread does it; lines that are durable are promised at once.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import orjson
from blake3 import blake3
from verl_core.errors import VerlError
from verl_core.protocols import CheckpointReader, Worker
from verl_core.rollout.handover import HandOver
from verl_core.rollout.writer import AtomicWriter
from verl_core.state.schedule import Schedule
from verl_core.types import (
    BatchKey,
    BatchSpec,
    PlatformKey,
    Reply,
    RunIdentity,
    Sample,
    Slice,
    StepResult,
    TensorChunk,
    UpdateMetrics,
    WorkerId,
)
from verl_core.workers import Loaded, RankState, StepCall, Weights
from verl_core.writes import LineSink
from verl_core_storage.local import LocalStorage

if TYPE_CHECKING:
    import torch

Promise = Callable[[str, str, str], None]  # kind, name, value
STEPS = 3
SCHEDULE = Schedule(seed=7, rows=(0, 1), prompts_per_batch=1, prompts_per_step=1, shuffle=True, total_steps=STEPS)
NOW = 1.8e9  # seconds since the epoch
_PLATFORM = PlatformKey("small", "none", 1, "uint8", 1, "one")
_SIZE = 8


@contextmanager
def pinned(first: int) -> Iterator[None]:
    """Names and times that are the same every time; names are counted from ``first``."""
    numbers = itertools.count(first)
    pins: tuple[tuple[ModuleType, str, Callable[..., object]], ...] = (
        (secrets, "token_hex", lambda size=8: f"{next(numbers):0{2 * size}x}"),
        (uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) << 64)),
        (time, "time", lambda: NOW),
        (os, "getpid", lambda: 1),
        (socket, "gethostname", lambda: "host"),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in pins]
    try:
        for module, name, function in pins:
            setattr(module, name, function)
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


# --- what the run computes -------------------------------------------------------------------


def samples_of(spec: BatchSpec, policy: bytes) -> list[Sample]:
    """What a policy answers to the prompts of a batch."""
    response = blake3(policy + str(spec.rows).encode()).hexdigest(2)
    return [
        Sample(
            row=row,
            index=0,
            seed=1000 * spec.policy_version + row,
            prompt=f"p{row}",
            response=response,
            prompt_ids=np.array([row], np.int32),
            response_ids=np.frombuffer(response.encode(), np.uint8).astype(np.int32),
            logprobs=np.array([-0.5], np.float32),
            finish="stop",
            reward=1.0,
        )
        for row in spec.rows
    ]


def trained(policy: bytes, batches: Sequence[Sequence[Sample]]) -> bytes:
    """The policy after a step on these batches."""
    read = blake3(policy)
    for sample in itertools.chain(*batches):
        read.update(f"{sample.row} {sample.seed} {sample.response}\n".encode())
    return read.digest(_SIZE)


def digest_of(policy: bytes) -> str:
    return f"sums:{policy.hex()}"


@cache
def policy_after(step: int) -> bytes:
    """The policy of the run that nothing disturbs."""
    if step == 0:
        return bytes(_SIZE)
    before = policy_after(step - 1)
    return trained(before, [samples_of(SCHEDULE.spec(key), before) for key in SCHEDULE.keys(step)])


@cache
def reference(key: BatchKey) -> tuple[BatchSpec, tuple[Sample, ...], str]:
    """A batch of the run that nothing disturbs, and the hash of its samples."""
    spec = SCHEDULE.spec(key)
    samples = samples_of(spec, policy_after(spec.policy_version))
    writer = AtomicWriter(LocalStorage("/nowhere"), RunIdentity("", 0, 0))
    return spec, tuple(samples), writer.stage(spec, samples, worker="", seed=0).ref.samples_hash


# --- in the place of workers, cluster and writer thread ----------------------------------------


class Rollout:
    def __init__(self, store: HandOver) -> None:
        self._store, self._policy = store, b""

    def call(self, method: str, argument: object) -> object:
        if isinstance(argument, Weights):
            self._policy = cast("dict[str, bytes]", dict(argument.tensors))["w"]
            return argument.version
        if isinstance(argument, BatchSpec):
            return self._store.commit(argument, samples_of(argument, self._policy), worker="rollout-0", seed=0)
        raise VerlError(f"unknown call {method!r}", where="rollout")

    def close(self) -> None: ...


class Trainer:
    def __init__(self, store: HandOver) -> None:
        self._store, self._policy, self._step = store, policy_after(0), 0

    def call(self, method: str, argument: object) -> object:
        if isinstance(argument, StepCall):
            self._policy = trained(self._policy, [self._store.load(ref) for ref in argument.refs])
            self._step = argument.step
            metrics = UpdateMetrics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1)
            return StepResult(argument.step, metrics, digest_of(self._policy), 1.0, 0.0)
        if method == "load":
            if argument is not None:
                checkpoint = cast(CheckpointReader, argument)
                self._policy = bytes(checkpoint.read("actor", Slice("w", (0,), (_SIZE,))).data)
                self._step = checkpoint.step
            return Loaded(digest_of(self._policy), _PLATFORM)
        if method == "weights":
            return Weights(self._step, cast("list[tuple[str, torch.Tensor]]", [("w", self._policy)]))
        return RankState(tensors_of(self._policy, "actor"), {}, b"", digest_of(self._policy))

    def close(self) -> None: ...


def tensors_of(policy: bytes, *components: str) -> Mapping[str, Sequence[TensorChunk]]:
    """The policy as one tensor ``w`` of each component."""
    return {component: [TensorChunk("w", "U8", (_SIZE,), (0,), (_SIZE,), policy)] for component in components}


class OneThread:
    """A ``Cluster`` that answers a call at once, and no clock that moves."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, Worker] = {}
        self._replies: deque[Reply] = deque()
        self._numbers = itertools.count(1)

    def spawn(self, worker: WorkerId, factory: Callable[[], Worker]) -> None:
        self._workers[worker] = factory()

    def submit(self, worker: WorkerId, method: str, argument: object) -> int:
        number = next(self._numbers)
        self._replies.append(Reply(number, worker, self._workers[worker].call(method, argument)))
        return number

    def poll(self, timeout_s: float) -> Reply | None:
        return self._replies.popleft() if self._replies else None

    def alive(self) -> Sequence[WorkerId]:
        return list(self._workers)

    def kill(self, worker: WorkerId) -> None:
        self._workers.pop(worker, None)

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return NOW

    def close(self) -> None: ...


class InOrder:
    """``Writes`` without a thread: tasks wait until somebody looks, and lines that wait together are one append."""

    def __init__(self, promise: Promise) -> None:
        self._promise = promise
        self._tasks: deque[Callable[[], object] | tuple[LineSink, bytes]] = deque()

    def line(self, sink: LineSink, line: bytes) -> None:
        self._tasks.append((sink, line))

    def submit(self, run: Callable[[], object]) -> None:
        self._tasks.append(run)

    def barrier(self, timeout_s: float = 600.0) -> None:
        self.check()

    def close(self, timeout_s: float = 600.0) -> None:
        self.check()

    def check(self) -> None:
        while self._tasks:
            task = self._tasks.popleft()
            if callable(task):
                task()
                continue
            sink, lines = task
            while self._tasks and isinstance(self._tasks[0], tuple):
                lines += cast("tuple[LineSink, bytes]", self._tasks.popleft())[1]
            sink.write(lines)
            last = orjson.loads(lines.splitlines()[-1])
            self._promise("log", "last line", f"{last['seq']} {last['hash']}")
