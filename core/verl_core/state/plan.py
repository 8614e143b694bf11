"""From a config and what the state log holds to the plan that the machine follows."""

from __future__ import annotations

from ..checkpoint.when import SaveRule
from ..config.schema import Config
from .history import History
from .machine import Plan, State
from .schedule import Schedule


def plan_of(config: Config, schedule: Schedule, history: History, until_step: int | None) -> Plan:
    """The plan of one attempt; ``history`` is read whenever the machine loads a state."""
    tolerance = config.training.fault_tolerance
    saves = SaveRule.of(tolerance)
    return Plan(
        schedule,
        total_steps=schedule.total_steps,
        last_step=min(until_step or schedule.total_steps, schedule.total_steps),
        saves=saves,
        eval_every=config.training.eval_interval_steps,
        timeout_s={
            State.PREPARE: tolerance.prepare_timeout_sec,
            State.COLLECT: tolerance.rollout_timeout_sec,
            State.TRAIN: tolerance.train_timeout_sec,
            State.EVAL: tolerance.eval_timeout_sec,
        },
        trend=lambda step: saves.fold(history.measured(step), step),
    )
