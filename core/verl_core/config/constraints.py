"""What the values of a config must satisfy among themselves: pure functions from a config to findings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

from .devices import check_sizes
from .findings import Finding
from .schema import Config

_FT = "training.fault_tolerance"
_LIMITS = f"{_FT}.severity_thresholds"
_ADAPTIVE = f"{_FT}.adaptive_checkpoint"

_AT_LEAST: dict[str, int] = {
    "total_steps": 1,
    "total_epochs": 1,
    "data.task_size": 1,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "model.actor.hybrid_engine.snapshot_interval_steps": 1,
    "rollout.prompts_per_batch": 1,
    "rollout.n": 1,
    "rollout.temperature": 0,
    "rollout.top_k": 0,
    "rollout.max_num_seqs": 0,
    "training.prompts_per_step": 1,
    "training.micro_batch_size": 0,
    "training.eval_interval_steps": 0,
    "training.runtime_interval_steps": 1,
    "training.threads": 1,
    "training.optim.weight_decay": 0,
    "training.optim.warmup_steps": 0,
    f"{_FT}.rollout_retry_times": 0,
    f"{_FT}.checkpoint_interval_steps": 1,
    f"{_FT}.max_checkpoint_age_sec": 0,
    f"{_ADAPTIVE}.volatility_window": 2,
    f"{_ADAPTIVE}.milestone_loss_drop": 0,
    f"{_LIMITS}.train_nodes_lost": 1,
    f"{_LIMITS}.oom_per_window": 1,
    f"{_LIMITS}.retries_per_window": 1,
    "storage.max_concurrent_uploads": 1,
    "storage.keep_checkpoints": 1,
    "backup.keep_local": 1,
    "distributed.rollout_workers": 1,
    "distributed.train_ranks": 1,
    "distributed.train_gpus": 0,
    "distributed.rollout_gpus": 0,
    "distributed.nccl.min_bus_gb_per_s": 0,
}
NO_EFFECT = (  # accepted, so that configs stay valid; nothing reads them yet
    "model.actor.hybrid_engine.enable_checkpointing",
    "model.actor.hybrid_engine.snapshot_interval_steps",
    f"{_LIMITS}.rollout_lost_fraction",
    f"{_LIMITS}.train_nodes_lost",
    f"{_LIMITS}.node_lost_sec",
)
_POSITIVE = (  # and finite: a time without end is no bound
    "training.optim.lr",
    "training.optim.eps",
    "training.optim.grad_clip",
    f"{_FT}.rollout_timeout_sec",
    f"{_FT}.train_timeout_sec",
    f"{_FT}.eval_timeout_sec",
    f"{_FT}.prepare_timeout_sec",
    f"{_ADAPTIVE}.volatility_threshold",
    f"{_LIMITS}.node_lost_sec",
    f"{_LIMITS}.rollout_storage_down_sec",
    f"{_LIMITS}.checkpoint_storage_down_sec",
    f"{_LIMITS}.state_log_down_sec",
    f"{_LIMITS}.window_sec",
    "distributed.nccl.measure_timeout_sec",
)
_FRACTIONS = ("rollout.top_p", f"{_FT}.high_gpu_memory_fraction", f"{_LIMITS}.rollout_lost_fraction")
_ONE_OF: dict[str, tuple[str, ...]] = {
    "data.overlong_prompts": ("error", "skip"),
    "data.chat_template": ("auto", "never"),
    "model.actor.dtype": ("float32", "bfloat16"),
    "training.device": ("auto", "cpu", "cuda"),
    "training.optim.schedule": ("constant", "linear", "cosine"),
    "distributed.numa": ("off", "bind"),
    "distributed.nccl.measure": ("check", "start", "never"),
}
_ALONE = ("distributed.rollout_workers", "distributed.train_ranks")


def check_constraints(config: Config) -> list[Finding]:
    """All findings, errors and warnings, in the order of the rules."""
    rules = (_ranges, _saving, _batches, _sampling, _data, _cluster, check_sizes, _idle)
    return [finding for rule in rules for finding in rule(config)]


def _idle(config: Config) -> Iterator[Finding]:
    for key in NO_EFFECT:
        if attrgetter(key)(config) != attrgetter(key)(Config()):
            yield Finding(
                key, "has no effect yet", "leave it at its default, so that nobody counts on it", warning=True
            )


def _ranges(config: Config) -> Iterator[Finding]:
    for key, least in _AT_LEAST.items():
        value: float | None = attrgetter(key)(config)
        if value is not None and not value >= least:
            yield Finding(key, f"{value} is too small", f"at least {least}")
    for key in _POSITIVE:
        number: float = attrgetter(key)(config)
        if not (number > 0 and math.isfinite(number)):
            yield Finding(key, f"{number} is not a positive number", "give a number above 0")
    for key in _FRACTIONS:
        fraction: float = attrgetter(key)(config)
        if not 0 < fraction <= 1:
            yield Finding(key, f"{fraction} is no fraction", "above 0, at most 1")
    for key, allowed in _ONE_OF.items():
        text: str = attrgetter(key)(config)
        if text not in allowed:
            yield Finding(key, f"{text!r} is unknown", "one of: " + ", ".join(allowed))
    memory = config.distributed.train_memory_fraction
    if not 0 <= memory <= 1:
        yield Finding("distributed.train_memory_fraction", f"{memory} is no fraction", "0 to 1; 0: no limit")
    betas = config.training.optim.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        yield Finding("training.optim.betas", f"{betas} are no betas of Adam", "two numbers from 0 to below 1")


def _saving(config: Config) -> Iterator[Finding]:
    adaptive = config.training.fault_tolerance.adaptive_checkpoint
    firsts = [phase.steps for phase in adaptive.intervals]
    if firsts and (firsts[0] != 0 or any(later <= first for first, later in pairwise(firsts))):
        what = f"the phases begin at steps {', '.join(map(str, firsts))}"
        yield Finding(f"{_ADAPTIVE}.intervals", what, "begin at step 0, and ascend")
    elif short := [phase.steps for phase in adaptive.intervals if phase.interval < 1]:
        what = f"the interval from step {short[0]} on is no number of steps"
        yield Finding(f"{_ADAPTIVE}.intervals", what, "at least 1")
    if adaptive.milestone_kl is not None and not adaptive.milestone_kl > 0:
        what = f"{adaptive.milestone_kl} is not a positive number"
        yield Finding(f"{_ADAPTIVE}.milestone_kl", what, "a KL above 0, or null")
    most = math.sqrt(max(0, adaptive.volatility_window - 1))
    if adaptive.enabled and adaptive.volatility_threshold >= most > 0:
        what = f"{adaptive.volatility_threshold} is never passed: {adaptive.volatility_window} losses reach {most:.3g}"
        yield Finding(f"{_ADAPTIVE}.volatility_threshold", what, "lower it, or look at more steps", warning=True)


def _batches(config: Config) -> Iterator[Finding]:
    step, batch = config.training.prompts_per_step, config.rollout.prompts_per_batch
    if step >= 1 and batch >= 1 and step % batch:
        fits = ", ".join(str(d) for d in range(1, step + 1) if step % d == 0)
        yield Finding(
            "rollout.prompts_per_batch",
            f"{batch} does not divide training.prompts_per_step ({step})",
            f"a step trains on whole batches: one of {fits}",
        )
    sequences, at_once = batch * config.rollout.n, config.rollout.max_num_seqs
    if 0 < at_once < sequences:
        yield Finding(
            "rollout.max_num_seqs",
            f"{at_once} is less than the {sequences} sequences of a batch (prompts_per_batch × n): the engine queues",
            f"at least {sequences}, or 0 for the whole batch",
            warning=not config.rollout.strict,
        )


def _sampling(config: Config) -> Iterator[Finding]:
    if config.algorithm.name != "grpo":
        return
    if config.rollout.n == 1:
        yield Finding("rollout.n", "1 sample of a prompt gives grpo nothing to compare", "at least 2")
    elif config.rollout.temperature == 0:
        what = "0 draws the same response for all samples of a prompt, so that all advantages are 0"
        yield Finding("rollout.temperature", what, "above 0, e.g. 1.0", warning=True)


def _data(config: Config) -> Iterator[Finding]:
    if config.data.task is None and not config.data.train_files:
        remedy = "--set data.train_files=[FILE.jsonl], or --set data.task=reasoning_gym:NAME"
        yield Finding("data.train_files", "no data is given", remedy)
    wanted = config.data.fingerprint
    if wanted is not None and not re.fullmatch(r"sha256:[0-9a-f]{64}", wanted):
        remedy = "`digest` of a run's .dataset_fingerprint, or leave it out"
        yield Finding("data.fingerprint", f"{wanted!r} is no fingerprint", remedy)


def _cluster(config: Config) -> Iterator[Finding]:
    if config.distributed.cluster not in (None, "inline"):
        return
    for key in _ALONE:
        value: int = attrgetter(key)(config)
        if value > 1:
            yield Finding(key, f"{value}, but cluster inline runs all in one process", "1, or another cluster")
