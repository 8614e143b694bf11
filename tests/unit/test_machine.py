"""The state machine: every order of events ends, waits are bounded, and SAFE_MODE is left only by a confirmation."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.checkpoint.when import SaveRule
from verl_core.errors import VerlError
from verl_core.state import events as ev
from verl_core.state.machine import Machine, Plan, State, advance
from verl_core.state.schedule import Schedule
from verl_core.types import (
    Action,
    BatchKey,
    BatchRef,
    Decision,
    Fault,
    PlatformKey,
    StepResult,
    UpdateMetrics,
)

PLATFORM = PlatformKey("cpu", "2", 1, "float32", 1, "one")
TIMEOUTS = {State.PREPARE: 10.0, State.COLLECT: 5.0, State.TRAIN: 20.0, State.EVAL: 20.0}
METRICS = UpdateMetrics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1)
OPENED = ev.Opened(1, "host", "0", "c", "d", 4)


def plan(total: int = 4, last: int | None = None, save_every: int = 2, eval_every: int = 0) -> Plan:
    schedule = Schedule(0, tuple(range(10)), 2, 4, True, total)
    return Plan(schedule, total, last or total, SaveRule.every(save_every), eval_every, TIMEOUTS)


def ref(key: BatchKey, version: int) -> BatchRef:
    return BatchRef(key, 0, 1, version, "blake3:x", 4, 8, 0.5, (0, 1))


class World:
    """Carries out commands at once; ``choose`` says what goes wrong and how it is decided."""

    def __init__(self, machine: Machine, choose: st.DataObject | None = None) -> None:
        self.machine, self.choose = machine, choose
        self.log: list[tuple[str, State]] = []
        self.trained: list[int] = []
        self.saved: list[int] = []
        self.dispatched: list[tuple[BatchKey, ...]] = []
        self.actions: list[Action] = ["retry", "reschedule", "rebuild", "skip_step", "safe_mode", "abort"]

    def feed(self, event: ev.Event) -> None:
        waiting = deque([event])
        while waiting:
            event = waiting.popleft()
            self.machine, commands = advance(self.machine, event, now=0.0)
            self.log.append((event.name, self.machine.state))
            for command in commands:
                waiting.extend(self.execute(command))

    def execute(self, command: ev.Command) -> list[ev.Event]:
        match command:
            case ev.Prepare():
                return [ev.Prepared(0, "d", PLATFORM, "exact")]
            case ev.Dispatch(step, keys):
                self.dispatched.append(keys)
                return [ev.RolloutDispatched(step, keys)]
            case ev.Decide(fault):
                action = self.choose.draw(st.sampled_from(self.actions)) if self.choose else "retry"
                return [ev.Decided(fault, Decision(action, "because"))]
            case ev.Save(step):
                self.saved.append(step)
            case ev.Emit(event):
                return [event]
        return []

    def answer(self) -> ev.Event:
        """What the workers would say next in this state."""
        m = self.machine
        if m.state is State.COLLECT:
            return ev.RolloutComplete(ref(min(m.pending), m.step), reused=False)
        if m.state is State.TRAIN:
            self.trained.append(m.step + 1)
            result = StepResult(m.step + 1, METRICS, "d", 0.5, 0.1)
            return ev.TrainStepDone(result, m.plan.schedule.keys(m.step + 1), replayed=False)
        return ev.EvalDone(m.step, 0.5)


def test_an_undisturbed_run_visits_the_states_in_order_and_saves_at_its_interval_and_end() -> None:
    world = World(Machine(plan(total=3, save_every=2)))
    world.feed(OPENED)
    while not world.machine.terminal:
        world.feed(world.answer())
    states = [state for _, state in world.log]
    order = [s for i, s in enumerate(states) if i == 0 or states[i - 1] is not s]
    step = [State.ROLLOUT, State.COLLECT, State.TRAIN, State.EVAL]
    assert order == [State.PREPARE, *step, *step, *step, State.DONE]
    assert (world.trained, world.saved) == ([1, 2, 3], [2, 3])


def test_until_step_stops_with_a_save_and_the_run_is_not_done() -> None:
    world = World(Machine(plan(total=4, last=3)))
    world.feed(OPENED)
    while not world.machine.terminal:
        world.feed(world.answer())
    assert world.machine.stopped
    assert (world.machine.state, world.machine.step, world.saved) == (State.EVAL, 3, [2, 3])


def test_only_missing_batches_are_rescheduled_after_a_timeout() -> None:
    world = World(Machine(plan()))
    world.feed(OPENED)
    first, second = sorted(world.machine.pending)
    world.feed(ev.RolloutComplete(ref(first, 0), reused=False))
    world.dispatched.clear()
    world.feed(ev.TimedOut())
    assert world.dispatched == [(second,)]
    assert ("retry_rollout", State.ROLLOUT) in world.log
    assert world.machine.state is State.COLLECT


def test_a_batch_that_comes_late_changes_nothing() -> None:
    world = World(Machine(plan()))
    world.feed(OPENED)
    first = min(world.machine.pending)
    while world.machine.state is State.COLLECT:
        world.feed(world.answer())
    before = world.machine
    world.feed(ev.RolloutComplete(ref(first, 0), reused=False))
    assert world.machine == before


@given(st.data())
def test_no_order_of_faults_and_decisions_leaves_it_stuck(data: st.DataObject) -> None:
    world = World(Machine(plan(total=3, eval_every=2)), data)
    world.feed(OPENED)
    for _ in range(40):
        if world.machine.terminal:
            break
        assert world.machine.deadline < float("inf"), "every wait is bounded"
        keys = tuple(sorted(world.machine.pending))
        fault = Fault("rollout_error", "rollout", "x", "y", world.machine.step + 1, keys)
        lost = Fault("worker_lost", "train", "x", "y", world.machine.step + 1)
        bad = data.draw(st.sampled_from([None, None, ev.TimedOut(), ev.FaultSeen(fault), ev.FaultSeen(lost)]))
        world.feed(bad or world.answer())
    while not world.machine.terminal:
        world.feed(world.answer())
    if world.machine.state is State.DONE:
        skipped = [name for name, _ in world.log].count("train_step_skipped")
        assert len(set(world.trained)) + skipped >= 3


@given(st.sampled_from([ev.TimedOut(), ev.DataAvailable(1), ev.EvalDone(1, None), ev.RetryTrain(1, ""), OPENED]))
def test_safe_mode_is_sticky(event: ev.Event) -> None:
    machine = Machine(plan(), state=State.SAFE_MODE, step=2)
    with pytest.raises(VerlError, match="SAFE_MODE"):
        advance(machine, event, now=0.0)
    again, commands = advance(machine, ev.Confirmed("someone", "looked"), now=0.0)
    assert (again.state, commands) == (State.INIT, ())
