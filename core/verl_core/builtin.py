"""What the core ships, registered through the same door as every plugin (entry point ``core``)."""

from __future__ import annotations

from .algorithms.grpo import GrpoConfig, build_grpo
from .checkpoint.sharded import ShardedConfig, build_sharded
from .hookspecs import Register, RegisterOn, hookimpl
from .protocols import Algorithm, Checkpointer, Resharder, Reward, RolloutWriter
from .reshard.slices import SlicesConfig, build_slices
from .rewards import exact_match, gsm8k, reasoning_gym
from .rollout.writer import AtomicConfig, build_atomic


@hookimpl
def register_rollout_writers(register: RegisterOn[RolloutWriter]) -> None:
    register("atomic", AtomicConfig, build_atomic)


@hookimpl
def register_checkpointers(register: RegisterOn[Checkpointer]) -> None:
    register("sharded", ShardedConfig, build_sharded)


@hookimpl
def register_resharders(register: Register[Resharder]) -> None:
    register("slices", SlicesConfig, build_slices)


@hookimpl
def register_algorithms(register: Register[Algorithm]) -> None:
    register("grpo", GrpoConfig, build_grpo)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("exact_match", exact_match.ExactMatchConfig, exact_match.build)
    register("gsm8k", gsm8k.Gsm8kConfig, gsm8k.build)
    register("reasoning_gym", reasoning_gym.ReasoningGymConfig, reasoning_gym.build)
