"""Hook specs: provider hooks are called once at the start, observer hooks at most once a step or incident.

A plugin is a module (or object) that implements some of these with ``@verl_core.hookimpl``::

    @hookimpl
    def register_storages(register):
        register("local", LocalConfig, build_local)

``register(name, config_class, build)`` is typed per kind, so that a factory of the wrong class is an error in the
plugin's own line. ``config_class`` is a dataclass; its fields are the keys that the user may set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pluggy

from .protocols import (
    AlertSink,
    Algorithm,
    Checkpointer,
    Cluster,
    HealthCheck,
    MetricSink,
    RecoveryPolicy,
    Resharder,
    Reward,
    RolloutEngine,
    RolloutWriter,
    Storage,
    TrainEngine,
)
from .types import Alert, BatchRef, BuildContext, CheckpointRef, Decision, Fault, RunFinished, StepResult

PROJECT = "verl_core"  # marker, project name and entry-point group are one word
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

C = TypeVar("C")
T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Typed registration of one kind of provider."""

    def __call__(self, name: str, config_class: type[C], build: Callable[[C, BuildContext], T_contra]) -> None: ...


class RegisterOn(Protocol[T_contra]):
    """Registration of providers that work on a storage (writers, checkpointers)."""

    def __call__(
        self, name: str, config_class: type[C], build: Callable[[C, BuildContext, Storage], T_contra]
    ) -> None: ...


# --- provider hooks --------------------------------------------------------------------------


@hookspec
def register_storages(register: Register[Storage]) -> None: ...


@hookspec
def register_rollout_writers(register: RegisterOn[RolloutWriter]) -> None: ...


@hookspec
def register_checkpointers(register: RegisterOn[Checkpointer]) -> None: ...


@hookspec
def register_resharders(register: Register[Resharder]) -> None: ...


@hookspec
def register_train_engines(register: Register[TrainEngine]) -> None: ...


@hookspec
def register_rollout_engines(register: Register[RolloutEngine]) -> None: ...


@hookspec
def register_clusters(register: Register[Cluster]) -> None: ...


@hookspec
def register_algorithms(register: Register[Algorithm]) -> None: ...


@hookspec
def register_rewards(register: Register[Reward]) -> None: ...


@hookspec
def register_recovery_policies(register: Register[RecoveryPolicy]) -> None: ...


@hookspec
def register_health_checks(register: Register[HealthCheck]) -> None: ...


@hookspec
def register_alert_sinks(register: Register[AlertSink]) -> None: ...


@hookspec
def register_metric_sinks(register: Register[MetricSink]) -> None: ...


# --- observer hooks (guarded: errors are counted, never raised) ------------------------------


@hookspec
def run_started(run_id: str, attempt: int, step: int) -> None: ...


@hookspec
def rollout_committed(ref: BatchRef) -> None: ...


@hookspec
def step_finished(result: StepResult) -> None: ...


@hookspec
def checkpoint_committed(ref: CheckpointRef) -> None: ...


@hookspec
def fault_detected(fault: Fault) -> None: ...


@hookspec
def recovery_finished(fault: Fault, decision: Decision, seconds: float) -> None: ...


@hookspec
def alert_raised(alert: Alert) -> None: ...


@hookspec
def run_finished(result: RunFinished) -> None: ...
