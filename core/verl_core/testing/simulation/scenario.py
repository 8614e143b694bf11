"""What is simulated: sizes, times and faults, as a YAML file whose every assumption is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ...config.schema import FaultToleranceConfig
from ...errors import ConfigError


@dataclass
class Timing:
    """Seconds of virtual time. A batch takes ``generate`` times a log-normal factor with spread ``generate_sigma``."""

    generate: float = 240.0
    generate_sigma: float = 0.15
    train: float = 120.0  # a training step, all ranks together
    weights: float = 2.0  # a worker loads new weights
    load: float = 30.0  # a rank loads a checkpoint
    copy_state: float = 1.0  # training stands while a save copies it
    write: float = 0.005  # one durable write of the controller
    reply: float = 0.001  # on the network
    detect: float = 2.0  # until the cluster reports a lost worker
    worker_start: float = 60.0  # a rollout worker, from spawn to ready
    rank_start: float = 60.0
    controller_restart: float = 15.0
    confirm: float = 600.0  # until a person ends SAFE_MODE
    repair: float = 1800.0  # a node, until it is back


@dataclass
class FaultMix:
    """Weights of the kinds of fault, and how long each lasts (seconds)."""

    rollout_node: float = 6.0
    train_node: float = 2.0
    hang: float = 1.0
    slow: float = 2.0
    partition: float = 1.0
    storage: float = 1.0
    clock: float = 0.5
    controller: float = 1.0
    slow_for: float = 900.0
    slow_factor: float = 3.0
    partition_for: float = 180.0
    storage_for: float = 20.0
    clock_jump: float = 3600.0


@dataclass
class Scenario:
    """``mtbf_hours`` is the mean time between faults of the whole cluster; 0: none. ``mtbf_steps`` in its place counts
    undisturbed steps."""

    name: str = "default"
    source: str = ""  # of the figures
    assumptions: list[str] = field(default_factory=list)
    rollout_workers: int = 1000
    workers_per_node: int = 8
    train_ranks: int = 64
    ranks_per_node: int = 8
    spare_nodes: int = 2
    hours: float = 24.0
    seed: int = 0
    mtbf_hours: float = 0.05
    mtbf_steps: float = 0.0
    batches_per_worker: int = 1  # in a step
    prompts_per_batch: int = 4
    samples_per_prompt: int = 8
    prompts: int = 20000  # in the data set
    timing: Timing = field(default_factory=Timing)
    faults: FaultMix = field(default_factory=FaultMix)
    fault_tolerance: FaultToleranceConfig = field(default_factory=FaultToleranceConfig)

    @property
    def batches_per_step(self) -> int:
        return self.rollout_workers * self.batches_per_worker


def scenario_names() -> list[str]:
    """The scenarios that come with the package."""
    return sorted(path.name.removesuffix(".yaml") for path in _folder() if path.name.endswith(".yaml"))


def load_scenario(name: str, overrides: list[str] | None = None) -> Scenario:
    """A packaged scenario by its name, or a YAML file; ``overrides`` are ``key=value``. Raises ConfigError."""
    packaged = {path.name.removesuffix(".yaml"): path for path in _folder()}
    try:
        if name in packaged:
            text = packaged[name].read_text(encoding="utf-8")
        elif name.endswith((".yaml", ".yml")):
            text = Path(name).read_text(encoding="utf-8")
        else:
            raise ConfigError(
                f"no scenario {name!r}", remedy=f"give a YAML file, or one of: {', '.join(scenario_names())}"
            )
        merged = OmegaConf.merge(
            OmegaConf.structured(Scenario), OmegaConf.create(text), OmegaConf.from_dotlist(overrides or [])
        )
        scenario = cast(Scenario, OmegaConf.to_object(merged))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=name, remedy="check the path") from None
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        what = " ".join(str(error).split()) if isinstance(error, yaml.YAMLError) else str(error).splitlines()[0]
        raise ConfigError(what, where=name, remedy="see core/verl_core/testing/simulation/scenario.py") from None
    _check(scenario, name)
    return scenario


def _check(scenario: Scenario, where: str) -> None:
    sizes = ("rollout_workers", "workers_per_node", "train_ranks", "ranks_per_node", "prompts_per_batch", "prompts")
    wrong = [key for key in sizes if getattr(scenario, key) < 1]
    if wrong or scenario.hours <= 0:
        what = f"must be above zero: {', '.join(wrong or ['hours'])}"
        raise ConfigError(what, where=where, remedy="correct it")
    if scenario.mtbf_hours < 0 or scenario.mtbf_steps < 0:
        raise ConfigError("the time between faults is negative", where=where, remedy="use 0 for no faults")


def _folder() -> list[Path]:
    return list(Path(str(resources.files("verl_core.testing.simulation") / "scenarios")).iterdir())
