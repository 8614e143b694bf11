from __future__ import annotations

import inspect
import logging

import pluggy
import pytest
from verl_core import hookspecs
from verl_core.errors import PluginError
from verl_core.observers import HOOKS, Observers
from verl_core.types import Alert, Decision, Fault, RunFinished, StepResult, UpdateMetrics

RESULT = StepResult(3, UpdateMetrics(0.1, 1.0, 1e-4, 0.0, 0.0, 1.0, 64), "sums:00", 0.5, 0.2)
FAULT = Fault("storage", "rollout", "batch epoch_0/batch_3", "slow", 3)


def test_the_hooks_are_those_of_the_specs_with_the_same_arguments() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    specified = {name for name in vars(manager.hook) if not name.startswith(("_", "register_"))}
    assert specified == set(HOOKS)
    for hook in HOOKS:
        spec = list(inspect.signature(getattr(hookspecs, hook)).parameters)
        assert list(inspect.signature(getattr(Observers(), hook)).parameters) == spec


def test_a_plain_function_gets_the_arguments_in_order() -> None:
    observers, seen = Observers(), list[object]()
    observers.add("step_finished", seen.append)
    observers.add("run_started", lambda run_id, attempt, step: seen.append((run_id, attempt, step)))
    observers.step_finished(RESULT)
    observers.run_started("run", 2, 7)
    assert seen == [RESULT, ("run", 2, 7)]


def test_a_listener_may_take_some_of_the_arguments() -> None:
    observers, seen = Observers(), list[object]()
    observers.add("recovery_finished", seen.append, owner="plugin", arguments=("seconds",))
    observers.recovery_finished(FAULT, Decision("retry", "once more"), 1.5)
    assert seen == [1.5]


def test_every_listener_runs_when_one_raises_and_errors_are_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observers, seen = Observers(), list[int]()

    def broken(result: StepResult) -> None:
        raise ValueError("dead sink")

    observers.add("step_finished", broken, owner="bad")
    observers.add("step_finished", lambda result: seen.append(result.step), owner="good")
    with caplog.at_level(logging.WARNING, logger="verl"):
        observers.step_finished(RESULT)
        observers.step_finished(RESULT)
    assert seen == [3, 3]
    assert dict(observers.errors) == {("bad", "step_finished"): 2}
    assert [record.getMessage() for record in caplog.records] == [
        "step_finished of bad failed (1 times so far): ValueError: dead sink",
        "step_finished of bad failed (2 times so far): ValueError: dead sink",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


def test_a_listener_with_the_wrong_arguments_does_not_hurt() -> None:
    observers = Observers()
    observers.add("alert_raised", lambda: None)
    observers.alert_raised(Alert("light", "a", "b", 1))
    assert observers.errors["library", "alert_raised"] == 1


def test_an_interrupt_in_a_listener_is_not_swallowed() -> None:
    observers = Observers()

    def interrupt(result: RunFinished) -> None:
        raise KeyboardInterrupt

    observers.add("run_finished", interrupt)
    with pytest.raises(KeyboardInterrupt):
        observers.run_finished(RunFinished("DONE", 3, "", ()))


def test_an_unknown_hook_is_refused() -> None:
    with pytest.raises(PluginError, match=r"unknown observer hook 'step_finish'.*step_finished"):
        Observers().add("step_finish", print)
