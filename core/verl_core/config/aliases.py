"""Keys of other dialects and what each means here: two tables, one rule a key.

``VERL`` is the configuration of verl's ``ppo_trainer`` family, ``ARTICLE`` that of articles on resuming runs
(``train``, ``model.actor.name_or_path`` …). A value of ``None`` stands for "not set" in both: no rule sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .secrets import MASK, secret_value
from .shape import known_keys

Outcome = Literal["taken", "holds", "differs", "option", "none"]
Values = Mapping[str, object]  # of the whole file or override, by its own dotted keys


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a key with its value comes to. ``says`` is for a person; empty where nothing needs saying.

    ``taken``: set in ``keys``; ``holds``: it is so here anyway; ``differs``: means something else here; ``option``:
    belongs on the command line; ``none``: has no counterpart.
    """

    outcome: Outcome
    keys: Values = field(default_factory=dict)  # native dotted key → value
    says: str = ""
    option: tuple[str, str] | None = None  # name and value, as on a command line


Rule = Callable[[object, Values, frozenset[str]], Meaning]  # value, all values, names of installed plugins
RESUME = "--resume"
_OURS = re.compile(r"(^|/)step_\d+/?$")
INTERVAL = "training.fault_tolerance.checkpoint_interval_steps"
ADAPTIVE = "training.fault_tolerance.adaptive_checkpoint"


def to(*keys: str, says: str = "") -> Rule:
    """The same value under other names."""
    return lambda value, values, installed: Meaning("taken", dict.fromkeys(keys, value), says)


def chosen(key: str, words: Mapping[object, object], otherwise: str) -> Rule:
    """Another word for a value; one that is not listed has no counterpart."""

    def rule(value: object, values: Values, installed: frozenset[str]) -> Meaning:
        known = isinstance(value, str | int | float) and value in words
        return Meaning("taken", {key: words[value]}) if known else Meaning("none", says=otherwise)

    return rule


def holds(wanted: object, otherwise: str) -> Rule:
    """Nothing to set: with ``wanted`` it is so here, else it differs."""

    def rule(value: object, values: Values, installed: frozenset[str]) -> Meaning:
        return Meaning("holds") if value == wanted else Meaning("differs", says=otherwise)

    return rule


def none(says: str) -> Rule:
    return lambda value, values, installed: Meaning("none", says=says)


def positive(key: str, below: object, says: str = "") -> Rule:
    """A number above 0 is taken; -1 and 0, which switch something off, become ``below`` (None: the default stays)."""

    def rule(value: object, values: Values, installed: frozenset[str]) -> Meaning:
        if isinstance(value, int | float) and value > 0:
            return Meaning("taken", {key: value})
        return Meaning("differs", says=says) if below is None else Meaning("taken", {key: below})

    return rule


def option(name: str) -> Rule:
    def rule(value: object, values: Values, installed: frozenset[str]) -> Meaning:
        return _as_option(name, value)

    return rule


def _as_option(name: str, value: object) -> Meaning:
    text = MASK if secret_value(value) else str(value)
    return Meaning("option", says=f"stands for {name} {text}", option=(name, text))


def engine(kind: str, block: str, words: Mapping[str, str]) -> Rule:
    """An engine by its plugin's name, if that is installed."""

    def rule(value: object, values: Values, installed: frozenset[str]) -> Meaning:
        name = words.get(str(value), str(value))
        if name not in installed:
            return Meaning("differs", says=f"no {kind} engine {name!r} is installed; the default is taken")
        return Meaning("taken", {f"{block}.name": name, "plugins": [name]})

    return rule


def mini_batch(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    whole = values.get("data.train_batch_size")
    if value == whole:
        return Meaning("holds")
    return Meaning("differs", says=f"a step makes one update on all of its prompts, not one every {value}")


def processes(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    nodes = values.get("trainer.nnodes", 1)
    count = value * nodes if isinstance(value, int) and isinstance(nodes, int) else value
    if count == 1:
        return Meaning("taken", {"distributed.train_ranks": 1})
    return Meaning(
        "differs", says=f"cluster inline trains in one process; with another: distributed.train_ranks={count}"
    )


def sinks(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    """``console`` is the progress that every run shows."""
    names = [str(name) for name in (value if isinstance(value, list) else [value]) if name != "console"]
    there = [name for name in names if name in installed]
    lacking = ", ".join(name for name in names if name not in installed)
    keys = {"monitoring.sinks": there, "plugins": there} if there else {}
    if not lacking:
        return Meaning("taken", keys) if keys else Meaning("holds")
    return Meaning("differs", keys, f"no sink is installed for {lacking}")


def resume_mode(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    if value == "disable":
        return _as_option(RESUME, "never")
    return Meaning("holds")  # resume_path: its path has a key of its own


def resume_path(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    """One of our checkpoints, or one of verl's, which another run begins with."""
    if _OURS.search(str(value)):
        return _as_option(RESUME, value)
    return Meaning("none", says="make a model folder of it: verl-core import PATH/actor --to DIR")


def processes_of(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    return processes(value, {}, installed)


def reward_model(value: object, values: Values, installed: frozenset[str]) -> Meaning:
    return Meaning("taken", {"model.reward.name": "sequence_classifier", "model.reward.path": value})


_NO_KL = "neither loss nor reward has a KL term"
_NO_CRITIC = "there is no critic: grpo needs none"
_FLASH = "sdpa takes flash kernels on a GPU by itself; to force the package: training.attn_implementation"
_REWARD = "one reward scores all rows: model.reward.name, a built-in or package.module:function"
_ENGINE = "the engine that is installed has no such limit"
_ACTOR, _ROLLOUT, _OPTIM = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.actor.optim"

VERL: dict[str, Rule] = {
    "data.train_batch_size": to("training.prompts_per_step"),
    "data.micro_batch_size_per_gpu": to("training.micro_batch_size"),
    "data.val_batch_size": none("all of data.val_files are evaluated together"),
    "data.filter_overlong_prompts": chosen("data.overlong_prompts", {True: "skip", False: "error"}, ""),
    "data.truncation": holds("error", "prompts are never cut: data.overlong_prompts is error or skip"),
    "data.reward_fn_key": none(_REWARD),
    "actor_rollout_ref.hybrid_engine": holds(True, "training and rollouts share their devices"),
    "actor_rollout_ref.model.path": to("model.actor.path"),
    "actor_rollout_ref.model.enable_gradient_checkpointing": to("training.activation_checkpointing"),
    "actor_rollout_ref.model.trust_remote_code": holds(False, "code from a model folder is never run"),
    "actor_rollout_ref.model.use_remove_padding": holds(True, "training is packed; training.pack_groups decides"),
    f"{_ACTOR}.strategy": engine("training", "training", {"fsdp2": "fsdp"}),
    f"{_ACTOR}.ppo_mini_batch_size": mini_batch,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": to("training.micro_batch_size"),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": none("a forward pass is bounded by training.micro_batch_size, in samples"),
    f"{_ACTOR}.use_dynamic_bsz": holds(False, "a forward pass is bounded by training.micro_batch_size, in samples"),
    f"{_ACTOR}.grad_clip": to("training.optim.grad_clip"),
    f"{_ACTOR}.clip_ratio": to("algorithm.clip_ratio_low", "algorithm.clip_ratio_high"),
    f"{_ACTOR}.clip_ratio_low": to("algorithm.clip_ratio_low"),
    f"{_ACTOR}.clip_ratio_high": to("algorithm.clip_ratio_high"),
    f"{_ACTOR}.clip_ratio_c": none("there is no second clip for negative advantages"),
    f"{_ACTOR}.loss_agg_mode": holds("token-mean", "the loss is the mean over all response tokens of the step"),
    f"{_ACTOR}.entropy_coeff": holds(0, "the loss has no entropy term"),
    f"{_ACTOR}.use_kl_loss": holds(False, _NO_KL),
    f"{_ACTOR}.kl_loss_coef": none(_NO_KL),
    f"{_ACTOR}.kl_loss_type": none(_NO_KL),
    f"{_ACTOR}.ppo_epochs": holds(1, "each batch is trained on once"),
    f"{_ACTOR}.shuffle": holds(False, "samples keep the order of the schedule"),
    f"{_OPTIM}.lr": to("training.optim.lr"),
    f"{_OPTIM}.betas": to("training.optim.betas"),
    f"{_OPTIM}.weight_decay": to("training.optim.weight_decay"),
    f"{_OPTIM}.lr_warmup_steps": positive("training.optim.warmup_steps", 0),
    f"{_OPTIM}.lr_warmup_steps_ratio": holds(0, "give training.optim.warmup_steps, a number of steps"),
    f"{_OPTIM}.min_lr_ratio": holds(0, "the learning rate falls to zero behind the last step"),
    f"{_OPTIM}.warmup_style": to("training.optim.schedule"),
    f"{_OPTIM}.lr_scheduler_type": to("training.optim.schedule"),
    f"{_OPTIM}.total_training_steps": none("it is total_steps, or total_epochs, of the run"),
    f"{_ROLLOUT}.name": engine("rollout", "rollout", {}),
    f"{_ROLLOUT}.n": to("rollout.n"),
    f"{_ROLLOUT}.temperature": to("rollout.temperature"),
    f"{_ROLLOUT}.top_p": to("rollout.top_p"),
    f"{_ROLLOUT}.top_k": positive("rollout.top_k", 0),
    f"{_ROLLOUT}.do_sample": holds(True, "rollout.temperature=0 is greedy"),
    f"{_ROLLOUT}.ignore_eos": holds(False, "an answer ends with its end-of-sequence token"),
    f"{_ROLLOUT}.dtype": none("rollouts run in model.actor.dtype"),
    f"{_ROLLOUT}.tensor_model_parallel_size": holds(1, "the rollout engine runs on one device"),
    f"{_ROLLOUT}.gpu_memory_utilization": none(_ENGINE),
    f"{_ROLLOUT}.max_num_batched_tokens": none(_ENGINE),
    f"{_ROLLOUT}.max_num_seqs": to("rollout.max_num_seqs"),
    "algorithm.adv_estimator": to("algorithm.name"),
    "algorithm.norm_adv_by_std_in_grpo": to("algorithm.normalize_std"),
    "algorithm.use_kl_in_reward": holds(False, _NO_KL),
    "algorithm.kl_penalty": none(_NO_KL),
    "algorithm.gamma": none("grpo has no discount"),
    "algorithm.lam": none("grpo has no discount"),
    "trainer.total_epochs": to("total_epochs"),
    "trainer.total_training_steps": to("total_steps"),
    "trainer.save_freq": positive(INTERVAL, None, f"a run always saves; {INTERVAL} keeps its default"),
    "trainer.test_freq": positive("training.eval_interval_steps", 0),
    "trainer.resume_mode": resume_mode,
    "trainer.resume_from_path": resume_path,
    "trainer.default_local_dir": option("--run-dir"),
    "trainer.n_gpus_per_node": processes,
    "trainer.nnodes": none("it counts with trainer.n_gpus_per_node"),
    "trainer.gpu_uuids": to("distributed.gpu_uuids"),
    "trainer.logger": sinks,
    "trainer.project_name": none("a run is named by its folder, --run-dir"),
    "trainer.experiment_name": none("a run is named by its folder, --run-dir"),
    "trainer.max_actor_ckpt_to_keep": to("storage.keep_checkpoints"),
    "trainer.val_before_train": holds(False, "the first evaluation comes after training.eval_interval_steps"),
    "trainer.device": to("training.device"),
    "reward_model.enable": holds(False, _REWARD),
    "custom_reward_function.path": none(_REWARD),
    "custom_reward_function.name": none(_REWARD),
}  # fmt: skip
BLOCKS: dict[str, str] = {  # all that lies below and has no rule of its own
    "critic": _NO_CRITIC,
    "reward_model": _REWARD,
    "algorithm.kl_ctrl": _NO_KL,
    "actor_rollout_ref.ref": _NO_KL + ", so that no reference model is kept",
    f"{_ROLLOUT}.val_kwargs": "evaluation samples as training does",
    f"{_ROLLOUT}.engine_kwargs": "options of an engine stand in the rollout block, by the engine's own names",
    f"{_ACTOR}.fsdp_config": "the fsdp engine needs no wrapping or offload settings",
    f"{_ACTOR}.checkpoint": "a checkpoint always holds everything that a restart needs",
    "ray_init": "nothing is run by ray",
    "ray_kwargs": "nothing is run by ray",
    "hydra": "a config is one file with its defaults list",
}

ARTICLE: dict[str, Rule] = {
    "train.total_steps": to("total_steps"),
    "train.save_interval": to(INTERVAL),
    "train.async_checkpoint": holds(True, "saving never waits for the disk; there is no other way"),
    "train.resume_from": option(RESUME),
    "train.resume_from_step": option(RESUME),
    "resume_from_step": option(RESUME),
    **{f"train.adaptive_checkpoint.{key}": to(f"{ADAPTIVE}.{key}") for key in known_keys(ADAPTIVE)},
    "model.actor.name_or_path": to("model.actor.path"),
    "model.actor.use_flash_attn": none(_FLASH),
    "model.reward.name_or_path": reward_model,
    "model.reward.dtype": to("model.reward.dtype"),
    "data.dataset_name": none("a start never downloads: fetch the data set, and name its files in data.train_files"),
    "data.split": none("name the files of the split in data.train_files"),
    "data.max_length": none("two limits, data.max_prompt_length and data.max_response_length, stand for it"),
    "distributed.world_size": processes_of,
    "distributed.backend": none("it follows from training.device"),
}  # fmt: skip

# Names that a plugin may use for options of its own: foreign only in a file that is foreign beyond doubt.
AMBIGUOUS = frozenset(
    {"algorithm.gamma", "algorithm.lam", "algorithm.kl_penalty", "algorithm.use_kl_in_reward", "algorithm.kl_ctrl"}
    | {"distributed.backend", "distributed.world_size", "model.reward.dtype"}
)
VERL_DEFAULTS: dict[str, object] = {  # native key → what a file that leaves it out gets from verl
    "data.max_response_length": 512,
    "training.prompts_per_step": 1024,
    "training.optim.weight_decay": 0.01,
    "rollout.n": 1,
}
