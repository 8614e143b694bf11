"""Frozen records that travel between the rooms. Units stand in the names, shapes in the comments.

Shapes: ``P`` prompts of a batch, ``n`` samples of a prompt, ``B = P * n`` samples, ``T`` tokens of one response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .errors import StorageError

Bytes = bytes | bytearray | memoryview
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


# --- prompts, batches, samples ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the data set, ready for generation."""

    row: int  # position in the data set: the prompt's name in seeds and in samples
    text: str  # as the model sees it, chat template applied
    answer: str  # what the reward compares with; "" where there is none
    ids: tuple[int, ...]  # token ids of ``text``
    extra: Mapping[str, str] = field(default_factory=dict)  # other columns that a reward may want


@dataclass(frozen=True, slots=True, order=True)
class BatchKey:
    """Name of a batch within a branch: epoch and index in it, both from 0."""

    epoch: int
    batch: int

    def __str__(self) -> str:
        return f"epoch_{self.epoch}/batch_{self.batch}"


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What one worker generates, commits and may lose: but for ``former`` a pure function of config, data, schedule."""

    key: BatchKey
    policy_version: int  # training steps of the schedule before it, skipped ones counted
    rows: tuple[int, ...]  # data set rows, in order
    former: int = 0  # it is scored as so many swaps of the reward ago: a batch that is made again


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine returns for one sample."""

    ids: Ints  # [T], the end-of-sequence token included when it was drawn
    logprobs: Floats  # [T], at the sampling temperature (greedy: 1), before top-k and top-p
    finish: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One scored sample of a committed batch."""

    row: int
    index: int  # 0 … n-1 within the prompt
    seed: int  # unsigned 64 bit
    prompt: str
    response: str
    prompt_ids: Ints
    response_ids: Ints  # [T]
    logprobs: Floats  # [T]
    finish: Literal["stop", "length"]
    reward: float


@dataclass(frozen=True, slots=True)
class BatchRef:
    """A committed batch as the journal knows it. Small: control messages never hold tokens."""

    key: BatchKey
    branch: int
    attempt: int  # attempt that committed it
    policy_version: int
    samples_hash: str  # "blake3:…" of samples.jsonl
    sample_count: int
    token_count: int  # response tokens
    reward_mean: float
    prompt_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch encoded in memory, ready for its commit."""

    ref: BatchRef  # what the commit returns, unless the batch is there already
    files: Mapping[str, bytes]
    draws: tuple[tuple[int, int, int], ...]  # (row, index, seed) of each sample


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The samples of one training step, in schedule order, in the clear for an algorithm."""

    step: int  # 1-based training step of the schedule
    prompt_ids: tuple[Ints, ...]  # B arrays
    response_ids: tuple[Ints, ...]  # B arrays [T]
    logprobs: tuple[Floats, ...]  # B arrays [T], of the policy that sampled
    rewards: npt.NDArray[np.float64]  # [B]
    groups: npt.NDArray[np.int64]  # [B], samples of one prompt occurrence share a number
    policy_versions: npt.NDArray[np.int64]  # [B]
    advantages: npt.NDArray[np.float64] | None = None  # [B], set by the algorithm


# --- seeds and sampling ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How responses are drawn. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 are off."""

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64
    max_num_seqs: int = 0  # sequences of one forward pass; 0: the whole batch


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt and the seeds of its samples; draw t of a sample is a function of (seed, t) alone."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]


# --- training --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Optim:
    """AdamW with gradient clipping; the learning rate of a step is a pure function of the step."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    schedule: str = "constant"  # constant | linear | cosine
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class TensorSums:
    """Order-free fingerprint of one tensor: two sums of its bit patterns modulo 2**64.

    ``plain`` is the sum over the elements' bits, ``weighted`` the sum of bits times (position + 1), so that
    shards can be added up in any layout.
    """

    name: str
    plain: int
    weighted: int


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """What one optimizer step reports; means are over response tokens unless said otherwise."""

    loss: float
    grad_norm: float  # before clipping
    lr: float
    kl: float  # sampled policy against current, k3 estimator
    clip_fraction: float
    entropy: float
    tokens: int  # response tokens trained on
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished training step."""

    step: int
    metrics: UpdateMetrics
    policy_digest: str  # "sums:<blake3>" over the TensorSums of all actor parameters after the step
    reward_mean: float
    seconds: float


# --- tensors on their way to and from checkpoints -------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorChunk:
    """A rectangular piece of a named tensor, as raw little-endian bytes."""

    name: str
    dtype: str  # safetensors names: F32, BF16, F16, I64 …
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]  # of this piece in the global tensor
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class Slice:
    """A request for a piece of a global tensor."""

    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a save is given: everything copied, so that training goes on meanwhile."""

    step: int
    branch: int
    attempt: int
    tensors: Mapping[str, Sequence[Sequence[TensorChunk]]]  # component → rank → pieces
    files: Mapping[str, bytes]  # path below the step's folder → content
    facts: Mapping[str, object]  # for checkpoint_summary.json


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A committed checkpoint as the journal knows it."""

    step: int
    branch: int
    attempt: int
    name: str  # folder below checkpoints/
    summary_hash: str  # "blake3:…" of checkpoint_summary.json
    bytes: int


# --- storage ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectStat:
    path: str  # relative to the storage's root, "/" separated
    size: int
    mtime: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can really do, as found by its probe."""

    publish: bool  # atomic rename of a folder onto a name that must not exist
    append: bool  # durable append to one object
    conditional_put: bool  # create-if-absent is honoured
    lock: bool  # an advisory lock that dies with its owner
    consistent_list: bool = True  # a listing shows every write and delete that ended before it
    encryption: str = ""  # of what is put: "" | "AES256" (SSE-S3) | "aws:kms" (SSE-KMS)
    versioned: bool = False  # the bucket keeps old versions of what is replaced or deleted


# --- cluster ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerId:
    role: str  # "rollout" | "train"
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a cluster reports about one call: a value, or the error that it ended with."""

    call: int
    worker: WorkerId
    value: object = None
    error: BaseException | None = None


# --- faults and decisions --------------------------------------------------------------------


FaultKind = Literal[
    "rollout_timeout", "rollout_error", "train_error", "train_oom", "worker_lost", "storage", "damage", "timeout"
]
Severity = Literal["light", "medium", "severe"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something went wrong: what kind, whose role, which scope, and the evidence for a person."""

    kind: FaultKind
    role: str
    scope: str  # "batch epoch_0/batch_3", "step 7", "worker rollout-1"
    evidence: str
    step: int
    keys: tuple[BatchKey, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultHistory:
    """What a policy may look at: how often this happened, and the limits from the config."""

    same_scope: int  # earlier faults of the kind with this scope
    rebuilds_of_scope: int  # earlier rebuilds decided for this scope
    in_window: int  # retries and rebuilds within ``window_sec``
    retry_times: int
    retries_per_window: int
    severity: Severity


Action = Literal[
    "retry", "reschedule", "rebuild", "shrink", "skip_batch", "skip_step", "rollback", "safe_mode", "abort"
]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy chose; journalled before it is carried out."""

    action: Action
    reason: str


@dataclass(frozen=True, slots=True)
class Alert:
    """One notification to a person."""

    severity: Severity
    title: str
    text: str  # what happened, what was lost, what was done, how to avoid it
    step: int | None  # None: of no step


@dataclass(frozen=True, slots=True)
class HealthFinding:
    check: str
    ok: bool
    text: str
    remedy: str = ""


# --- what builders of plugins are given ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose data a writer or checkpointer makes: stands in every record, and is held against what it finds."""

    run_id: str
    branch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RewardSource:
    """What scores the samples of a run."""

    name: str = ""  # as ``model.reward.name``
    path: str = ""  # of the model folder, "" for a reward that is no model
    digest: str = ""  # "blake3:…" of that folder's content


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Facts of the run that a plugin's ``build`` may need; its own options come as its config record."""

    run_id: str = ""
    branch: int = 0
    attempt: int = 0
    seed: int = 0
    uri: str = ""  # of the storage to open
    max_concurrent_uploads: int = 4  # of all processes of this user on this node
    on_wait: Callable[[StorageError], None] | None = None  # told of a storage call that has no answer yet; any thread
    model_path: str = ""
    allow_pickle: bool = False
    tokenizer_classes: tuple[str, ...] = ()  # allowed beside the built-in list
    dtype: str = "float32"
    device: str = "cpu"
    pad_id: int = 0
    eos_ids: tuple[int, ...] = ()
    optim: Optim = Optim()
    micro_batch_size: int = 0  # samples of one forward pass; 0: all
    total_steps: int = 0
    temperature: float = 1.0
    rank: int = 0
    world_size: int = 1
    threads: int = 1
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class PlatformKey:
    """Two attempts with equal keys must produce equal bits (mode ``exact``)."""

    machine: str  # CPU capability or GPU name
    torch: str
    threads: int
    dtype: str
    ranks: int
    layout: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """How a call of ``run`` ended."""

    state: str
    step: int
    policy_digest: str
    rewards: Sequence[float | None]
    stopped_by: str = ""  # who asked it to stop before its end
