"""What the state machine does with a decision, in every state: carried out, never lost, and the end is the end."""

from __future__ import annotations

import pytest
from verl_core.checkpoint.when import SaveRule
from verl_core.state import events as ev
from verl_core.state.machine import TERMINAL, Machine, Plan, State, advance
from verl_core.state.schedule import Schedule
from verl_core.types import Action, Decision, Fault

SCHEDULE = Schedule(0, tuple(range(10)), 2, 4, True, 9)
PLAN = Plan(SCHEDULE, 9, 9, SaveRule.every(2), 3, dict.fromkeys(State, 5.0))
LIVING = [state for state in State if state not in TERMINAL]
UNKNOWN: tuple[Action, ...] = ("shrink", "skip_batch", "rollback")


def machine(state: State) -> Machine:
    pending = frozenset(SCHEDULE.keys(2)) if state in (State.ROLLOUT, State.COLLECT) else frozenset()
    return Machine(PLAN, state, step=1, pending=pending, deadline=5.0)


def decided(m: Machine, action: Action, role: str = "train") -> tuple[Machine, tuple[ev.Command, ...]]:
    keys = tuple(sorted(m.pending)) if role == "rollout" else ()
    fault = Fault("train_error", role, "step 2", "why", 2, keys)
    return advance(m, ev.Decided(fault, Decision(action, "because")), now=1.0)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("role", ["train", "rollout"])
def test_a_decision_for_safe_mode_is_carried_out_in_every_state(state: State, role: str) -> None:
    after, commands = decided(machine(state), "safe_mode", role)
    assert (after.state, after.terminal, commands) == (State.SAFE_MODE, True, ())


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("action", UNKNOWN)
def test_a_decision_that_cannot_be_carried_out_ends_in_safe_mode(state: State, action: Action) -> None:
    after, _ = decided(machine(state), action)
    assert after.state is State.SAFE_MODE


@pytest.mark.parametrize("state", LIVING)
def test_an_abort_ends_the_run_in_every_state(state: State) -> None:
    after, commands = decided(machine(state), "abort")
    assert (after.state, commands) == (State.FAILED, ())


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("action", ["retry", "reschedule", "rebuild", "skip_step", "safe_mode", "abort"])
def test_no_decision_leads_out_of_an_end(state: State, action: Action) -> None:
    after, commands = decided(machine(state), action)
    assert (after.state, commands) == (state, ())


@pytest.mark.parametrize("state", LIVING)
def test_every_fault_is_put_to_the_policies(state: State) -> None:
    fault = Fault("worker_lost", "train", "step 2", "gone", 2)
    _, commands = advance(machine(state), ev.FaultSeen(fault), now=1.0)
    assert commands == (ev.Decide(fault),)


@pytest.mark.parametrize("state", LIVING)
def test_a_deadline_that_passes_is_a_fault_in_every_state(state: State) -> None:
    _, commands = advance(machine(state), ev.TimedOut(), now=9.0)
    [emitted] = commands
    assert isinstance(emitted, ev.Emit)
    assert isinstance(emitted.event, ev.FaultSeen)
