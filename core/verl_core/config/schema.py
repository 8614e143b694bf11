"""The configuration as frozen-shape dataclasses: one place for names, types and defaults.

A block that chooses a provider has a ``name``; the keys that it has beyond those listed here belong to that plugin and
are checked against the plugin's own record (see ``options``). Units stand in the names, or beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MISSING: Any = "???"  # a value that must be given


@dataclass
class DataConfig:
    """Where prompts come from. ``task`` makes them (``reasoning_gym:NAME``); else ``train_files`` are read."""

    train_files: list[str] = field(default_factory=list)  # files, folders or globs: .jsonl, .parquet, datasets folders
    val_files: list[str] = field(default_factory=list)
    task: str | None = None
    task_size: int = 1024  # rows of a made data set
    task_options: dict[str, Any] = field(default_factory=dict)
    prompt_key: str = "prompt"  # column with a string, or with a list of chat messages
    answer_key: str = "answer"  # column that the reward compares with; empty: no answers
    max_prompt_length: int = 512  # tokens
    max_response_length: int = 64  # tokens
    overlong_prompts: str = "error"  # error | skip
    shuffle: bool = True
    chat_template: str = "auto"  # auto: when the tokenizer has one | never
    system_prompt: str | None = None
    prompt_suffix: str = ""  # appended to each prompt's text
    fingerprint: str | None = None  # sha256:… that the training data must have


@dataclass
class HybridEngineConfig:
    enable_checkpointing: bool = True
    snapshot_interval_steps: int = 25


@dataclass
class ActorConfig:
    """A folder with ``config.json``, safetensors weights and a tokenizer."""

    path: str = MISSING
    dtype: str = "float32"  # float32 | bfloat16
    hybrid_engine: HybridEngineConfig = field(default_factory=HybridEngineConfig)


@dataclass
class RewardConfig:
    """``exact_match``, ``gsm8k``, ``reasoning_gym``, another plugin's name, or ``package.module:function``."""

    name: str = "exact_match"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    tokenizer_classes: list[str] = field(default_factory=list)  # allowed beside the built-in list
    allow_pickle: bool = False


@dataclass
class AlgorithmConfig:
    name: str = "grpo"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutConfig:
    """``prompts_per_batch`` is the unit that one worker generates, commits and may lose."""

    name: str | None = None  # engine; default: the one that the loaded plugins offer
    writer: str = "atomic"
    prompts_per_batch: int = 32
    n: int = 8  # samples of a prompt
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_num_seqs: int = 0  # sequences of one forward pass; 0: the whole batch
    strict: bool = False  # warnings about queueing become errors
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimConfig:
    lr: float = 1e-6
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    schedule: str = "constant"  # constant | linear | cosine
    warmup_steps: int = 0


@dataclass
class SeverityThresholds:
    rollout_lost_fraction: float = 0.33
    train_nodes_lost: int = 2
    node_lost_sec: float = 120
    rollout_storage_down_sec: float = 60
    checkpoint_storage_down_sec: float = 600
    state_log_down_sec: float = 600
    oom_per_window: int = 3
    retries_per_window: int = 12
    window_sec: float = 3600


@dataclass
class SaveInterval:
    """From step ``steps`` on, every step whose number is a multiple of ``interval`` is saved."""

    steps: int = MISSING
    interval: int = MISSING


@dataclass
class AdaptiveCheckpointConfig:
    """When on, it stands for ``checkpoint_interval_steps``. Everything follows from config and metrics alone."""

    enabled: bool = False
    intervals: list[SaveInterval] = field(default_factory=list)  # ascending from step 0
    volatility_window: int = 20  # steps that the loss is looked at over
    volatility_threshold: float = 2.0  # deviation of these losses, as a share of their mean size, that halves intervals
    milestone_loss_drop: float = 0.0  # share that the mean of the window falls by to be saved; 0: off
    milestone_kl: float | None = None  # saved when the KL first comes down to it; null: off


@dataclass
class FaultToleranceConfig:
    """On by default. Off: nothing is committed, the state log is not synced, only the last save is made."""

    enabled: bool = True
    rollout_retry_times: int = 3
    rollout_timeout_sec: float = 120
    train_timeout_sec: float = 3600
    eval_timeout_sec: float = 3600
    prepare_timeout_sec: float = 3600
    checkpoint_interval_steps: int = 50
    adaptive_checkpoint: AdaptiveCheckpointConfig = field(default_factory=AdaptiveCheckpointConfig)
    max_checkpoint_age_sec: float = 1800  # older, with a GPU nearly full: the run saves by itself; 0: never
    high_gpu_memory_fraction: float = 0.95  # in use, above which a GPU is nearly full
    state_log_path: str | None = None  # default: state_log.jsonl in the run folder
    recovery: list[str] = field(default_factory=list)  # policies in order; default: all loaded ones
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # by policy
    severity_thresholds: SeverityThresholds = field(default_factory=SeverityThresholds)


@dataclass
class TrainingConfig:
    name: str | None = None  # engine; default: the one that the loaded plugins offer
    checkpointer: str = "sharded"
    prompts_per_step: int = 32
    micro_batch_size: int = 0  # samples of one forward pass; 0: all
    eval_interval_steps: int = 0  # 0: never
    runtime_interval_steps: int = 500
    device: str = "auto"  # auto | cpu | cuda
    threads: int = 1  # torch threads of a worker process
    deterministic: bool = True  # exact mode: equal platforms give equal bits
    optim: OptimConfig = field(default_factory=OptimConfig)
    fault_tolerance: FaultToleranceConfig = field(default_factory=FaultToleranceConfig)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class StorageConfig:
    rollout_storage_uri: str | None = None  # default: rollouts/ in the run folder
    checkpoint_uri: str | None = None  # default: checkpoints/ in the run folder
    max_concurrent_uploads: int = 4
    keep_checkpoints: int = 3  # newest ones kept; at least 1
    single_committer: bool = False  # allow stores that ignore create-if-absent
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class MonitoringConfig:
    sinks: list[str] = field(default_factory=list)  # default: all loaded ones
    options: dict[str, Any] = field(default_factory=dict)  # sink name → its keys


@dataclass
class BackupConfig:
    local_backup_dir: str | None = None
    keep_local: int = 2


@dataclass
class NcclConfig:
    """Set in the environment of every process; null: as the environment has it. Names and meaning are NCCL's own."""

    NCCL_SOCKET_IFNAME: str | None = None
    NCCL_IB_DISABLE: bool | None = None
    NCCL_IB_GID_INDEX: int | None = None
    NCCL_IB_SL: int | None = None
    NCCL_IB_TIMEOUT: int | None = None
    NCCL_IB_RETRY_CNT: int | None = None
    NCCL_IB_CUDA_SUPPORT: bool | None = None
    measure: str = "check"  # when a short all-reduce is timed: check | start (every start, too) | never
    measure_timeout_sec: float = 60
    min_bus_gb_per_s: float = 0.0  # a slower all-reduce is a warning


@dataclass
class DistributedConfig:
    """A pool of GPUs a role: the first ``train_gpus`` of ``gpu_uuids`` train, the next ``rollout_gpus`` generate."""

    cluster: str | None = None  # default: the one that the loaded plugins offer
    rollout_workers: int = 1
    train_ranks: int = 1
    train_gpus: int = 0  # 0: GPUs are not bound
    rollout_gpus: int = 0  # 0: generation shares those of training
    gpu_uuids: list[str] = field(default_factory=list)  # in the order of the mesh; empty: chosen once, then kept
    train_memory_fraction: float = 0.0  # of a GPU's memory that training may take; 0: no limit
    numa: str = "off"  # off | bind: to the processors near the GPUs
    nccl: NcclConfig = field(default_factory=NcclConfig)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    """The whole configuration of a run."""

    plugins: list[str] = field(default_factory=list)
    seed: int = 0
    total_steps: int = 100
    total_epochs: int | None = None  # when set, the run ends after the smaller of the two
    frozen: str | None = None  # file of pinned requirements that every start is held against
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    monitoring: MonitoringConfig = field(default_factory=MonitoringConfig)
    backup: BackupConfig = field(default_factory=BackupConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
