"""What plugins must offer. Small on purpose: each method states its errors and whether repeating it is harmless.

The loop holds plain objects of these protocols; hooks are used at the door only (see ``hookspecs``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .types import (
    Alert,
    BatchKey,
    BatchRef,
    BatchSpec,
    Bytes,
    Capabilities,
    CheckpointRef,
    CheckpointState,
    Completion,
    Decision,
    Fault,
    FaultHistory,
    GenerateRequest,
    HealthFinding,
    ObjectStat,
    PlatformKey,
    Prompt,
    Reply,
    Sample,
    Sampling,
    Slice,
    StagedBatch,
    TensorChunk,
    TensorSums,
    TrainBatch,
    UpdateMetrics,
    WorkerId,
)

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Portable(Protocol):
    """What may be pickled and used in another process of this host, beside the original: it keeps nothing in memory
    that its effects depend on."""

    def portable(self) -> bool:
        """Whether this one may, with all that it is made of."""
        ...


@runtime_checkable
class Storage(Protocol):
    """Objects under one root URI. Paths are relative and "/" separated. Errors: the ``StorageError`` tree.

    Every call is bounded in time: past its deadline it raises ``StorageTimeout``. Local disks alone rely on the kernel.
    Calls of several threads may overlap, and a forked child may go on using a storage.
    """

    uri: str

    def capabilities(self) -> Capabilities:
        """What the store really does. The first call may try it out, within its deadline, and raise what that meets."""
        ...

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        """Write an object durably and return its size; readers see it whole or not at all.

        ``if_absent``: raise ``ObjectExists`` if it is there. When this very call made it and the answer was lost on
        the way, that is a success. Repeating a put is harmless, but one that was given up may still land.
        """
        ...

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive). Raises ``ObjectMissing``."""
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """All objects below ``prefix`` (a folder name), sorted by path; nothing when it does not exist."""
        ...

    def stat(self, path: str) -> ObjectStat | None: ...

    def delete(self, path: str) -> None:
        """Delete an object or everything below a folder. Deleting what is not there is harmless."""
        ...

    def child(self, prefix: str) -> Storage:
        """The same store, rooted at ``prefix``."""
        ...


@runtime_checkable
class FileStorage(Storage, Protocol):
    """A store that is a file system: folders can be staged and renamed, files appended to and locked."""

    def write(self, path: str, data: Bytes | Iterable[Bytes]) -> int:
        """Write a file below a staged folder: its content is durable on return, its name with ``publish``."""
        ...

    def publish(self, staged: str, target: str) -> None:
        """Sync the names below the folder ``staged`` and rename it once onto ``target``.

        Raises ``ObjectExists`` when ``target`` is there, and leaves ``staged`` as it is. An error of the rename
        is decided by looking at the target: done is done.
        """
        ...

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        """Append to a file (made when absent), durable on return with ``sync``."""
        ...

    def truncate(self, path: str, size: int) -> None: ...

    def settle(self, folder: str) -> None:
        """Make the names in a folder ("" is the root) durable: whoever gave them may have died before its own sync."""
        ...

    def move(self, path: str, target: str) -> None:
        """Durable rename of a file or folder; raises ``ObjectExists``."""
        ...

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take an advisory lock that dies with this process; returns its release, or None when it is held."""
        ...

    def free_bytes(self) -> int:
        """Room that is left below the root."""
        ...


class TrainEngine(Protocol):
    """One rank of the training group: parameters, optimizer, and the update."""

    def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
        """One optimizer step on ``batch`` (``advantages`` are set). Raises ``OutOfMemory``; then nothing changed."""
        ...

    def sums(self) -> Sequence[TensorSums]:
        """Fingerprint of this rank's parameters, in name order; shards of one tensor add up."""
        ...

    def shards(self, component: str) -> Iterator[TensorChunk]:
        """Copies of this rank's pieces of ``actor`` or ``optimizer``; later updates do not change them."""
        ...

    def slices(self, component: str) -> Sequence[Slice]:
        """The pieces that this rank holds: what ``load`` wants to be given."""
        ...

    def load(self, component: str, read: Callable[[Slice], TensorChunk]) -> None:
        """Fill this rank's pieces bit for bit. Repeating it is harmless."""
        ...

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors by their Hugging Face names, for rollout engines; valid until the next ``update``."""
        ...

    def rng_state(self) -> bytes:
        """State of this rank's generators, for the record: each update seeds them by (run seed, step), so that
        nothing has to be restored."""
        ...

    def platform(self) -> PlatformKey:
        """Two attempts with equal keys must produce equal bits."""
        ...

    def files(self) -> Mapping[str, bytes]:
        """Small files to lie beside the actor's weights (``config.json``, tokenizer)."""
        ...

    def close(self) -> None: ...


class RolloutEngine(Protocol):
    """Generates with log-probabilities; draws depend on (sample seed, token position) alone."""

    def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        """For each request its n completions, in the order of its seeds."""
        ...

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over new weights. A failed call leaves the engine unusable until one succeeds."""
        ...

    def version(self) -> int:
        """Policy version of the loaded weights; -1 before the first ``load_weights``."""
        ...

    def close(self) -> None: ...


class Worker(Protocol):
    """Anything that a cluster can host: ``call`` runs one named method and returns its small result."""

    def call(self, method: str, argument: object) -> object: ...

    def close(self) -> None: ...


class Cluster(Protocol):
    """Workers and time. The controller never blocks but in ``poll``, so a simulator can stand in its place."""

    def spawn(self, worker: WorkerId, factory: Callable[[], Worker]) -> None:
        """Start a worker; a spawn onto a living id replaces it."""
        ...

    def submit(self, worker: WorkerId, method: str, argument: object) -> int:
        """Start a call and return its number; its ``Reply`` comes from ``poll``. Raises ``WorkerLost``."""
        ...

    def poll(self, timeout_s: float) -> Reply | None:
        """The next reply, or None after ``timeout_s``."""
        ...

    def alive(self) -> Sequence[WorkerId]: ...

    def kill(self, worker: WorkerId) -> None:
        """End a worker at once; calls under way never answer."""
        ...

    def now(self) -> float:
        """Monotonic seconds: the clock of all deadlines."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for records."""
        ...

    def close(self) -> None: ...


class RolloutWriter(Protocol):
    """Commits batches so that they are whole or absent, and finds them again."""

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        """Encode and hash, in memory: nothing is written. ``seed`` is the run's."""
        ...

    def commit(self, staged: StagedBatch) -> BatchRef:
        """Write, verify and publish. With the batch already committed: check that it is the same, return its ref."""
        ...

    def load(self, ref: BatchRef) -> list[Sample]:
        """Read a committed batch and hold it against the ref's hash. Raises ``DamagedBatch``."""
        ...

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        """Every batch that has its ``SUCCESS``, from storage, in the order of their keys; not those that are known."""
        ...

    def sweep(self) -> Sequence[str]:
        """Remove what dead attempts left half-made; for the one controller, at its start."""
        ...

    def condemn(self, ref: BatchRef) -> str:
        """Put a damaged batch aside, so that it can be committed anew; return where it is. For the one controller,
        after it is journalled. Repeating it is harmless."""
        ...


class Checkpointer(Protocol):
    """Saves and loads whole training states; committed last, verified on load."""

    def save(self, state: CheckpointState) -> CheckpointRef: ...

    def list(self) -> list[CheckpointRef]:
        """Committed ones, newest first; says nothing about damage."""
        ...

    def verify(self, ref: CheckpointRef) -> None:
        """Check every hash. Raises ``DamagedCheckpoint`` that names the file."""
        ...

    def open(self, ref: CheckpointRef) -> CheckpointReader:
        """Verify, then read."""
        ...

    def contents(self, ref: CheckpointRef) -> CheckpointFiles:
        """The files of a checkpoint, verified first. Raises ``DamagedCheckpoint``."""
        ...

    def adopt(self, ref: CheckpointRef, files: CheckpointFiles) -> None:
        """Commit a checkpoint that another storage holds, byte for byte: it is ``ref`` here, too. One that is there
        with the same policy is left alone. Raises like ``save``."""
        ...

    def delete(self, ref: CheckpointRef) -> None:
        """Remove, so that no half of it is ever listed. Repeating it is harmless."""
        ...

    def condemn(self, ref: CheckpointRef) -> str:
        """Move a damaged checkpoint aside; its name is free then. Returns where it is."""
        ...

    def sweep(self) -> Sequence[str]:
        """Remove what dead attempts left half-made; for the one controller, at its start."""
        ...


CheckpointFiles = tuple[bytes, Iterator[tuple[str, Iterator[bytes]]]]  # its summary; path and blocks of each other file


class CheckpointReader(Protocol):
    step: int

    def read(self, component: str, piece: Slice) -> TensorChunk: ...

    def file(self, path: str) -> bytes: ...


class Resharder(Protocol):
    """Pure plans: which stored pieces make up a wanted piece."""

    def plan(self, stored: Sequence[Slice], wanted: Slice) -> Sequence[tuple[int, Slice]]:
        """Pairs (index of the stored piece, the overlap in global coordinates) that cover ``wanted`` exactly."""
        ...


class LossFn(Protocol):
    """Policy loss of one algorithm on padded tensors ``[B, T]``; ``advantages`` is ``[B]``."""

    def __call__(
        self,
        logp: torch.Tensor,
        old_logp: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Per-token losses ``[B, T]`` (the engine takes their mean over all tokens of the step) and per-token
        diagnostics of the same shape (``clip_fraction``, ``kl`` …)."""
        ...


class Algorithm(Protocol):
    """One file, two formulas; the data flow around them stands in ``algorithms/flow.py``."""

    def advantages(self, rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Rewards ``[B]`` and group numbers ``[B]`` → advantages ``[B]``."""
        ...

    @property
    def loss(self) -> LossFn: ...


class Reward(Protocol):
    """Scores responses. Pure: the same input gives the same score."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]: ...


class RecoveryPolicy(Protocol):
    def decide(self, fault: Fault, history: FaultHistory) -> Decision | None:
        """Pure. None: not mine, ask the next policy."""
        ...


class HealthCheck(Protocol):
    def check(self) -> Sequence[HealthFinding]: ...


class AlertSink(Protocol):
    def send(self, alert: Alert) -> None: ...


class MetricSink(Protocol):
    def emit(self, step: int, values: Mapping[str, float]) -> None: ...
