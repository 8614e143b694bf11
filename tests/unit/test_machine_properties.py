"""The state machine with the real policies, under any order of events: never stuck, every wait bounded, budgets end."""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_core.config.schema import FaultToleranceConfig
from verl_core.errors import VerlError
from verl_core.protocols import RecoveryPolicy
from verl_core.recovery.supervisor import decide
from verl_core.state import events as ev
from verl_core.state.history import History
from verl_core.state.machine import TERMINAL, Machine, State, advance, evaluation_key
from verl_core.types import BatchKey, BuildContext, Fault, FaultKind, StepResult
from verl_core_recovery.rebuild import RebuildConfig, build_rebuild
from verl_core_recovery.retry import RetryConfig, build_retry

from tests.unit.test_machine import METRICS, OPENED, PLATFORM, plan, ref

CONFIG = FaultToleranceConfig()
POLICIES: list[RecoveryPolicy] = [
    build_retry(RetryConfig(), BuildContext()),
    build_rebuild(RebuildConfig(), BuildContext()),
]
WAITS = (State.COLLECT, State.TRAIN, State.EVAL)
TROUBLES = ("timeout", "batch failed", "rollout worker lost", "rank lost", "step failed", "out of memory", "late batch")


class Run:
    """A run in one thread: commands succeed at once, faults are decided by the real supervisor, saves last."""

    def __init__(self, total: int = 3, eval_every: int = 2) -> None:
        self.machine = Machine(plan(total=total, save_every=2, eval_every=eval_every))
        self.history, self.saved, self.time = History(), 0, 0.0
        self.trained: list[int] = []  # steps along the lineage: a rebuild takes back what it goes behind
        self.decisions = 0
        self.feed(OPENED)

    def feed(self, event: ev.Event) -> None:
        waiting = deque([event])
        for _ in range(1000):
            if not waiting:
                return
            self.machine, commands = advance(self.machine, waiting.popleft(), self.time)
            for command in commands:
                waiting.extend(self._execute(command))
        pytest.fail("one event led to a thousand")

    def _execute(self, command: ev.Command) -> list[ev.Event]:
        match command:
            case ev.Prepare():
                self.trained = [step for step in self.trained if step <= self.saved]
                return [ev.Prepared(self.saved, "d", PLATFORM, "exact")]
            case ev.Dispatch(step, keys):
                return [ev.RolloutDispatched(step, keys)]
            case ev.Save(step):
                self.saved = step
            case ev.Emit(event):
                return [event]
            case ev.Decide(fault):
                return [self._decided(fault)]
        return []

    def _decided(self, fault: Fault) -> ev.Decided:
        self.decisions += 1
        self.history.faults.append((fault.kind, fault.scope))
        decision = decide(fault, self.history, CONFIG, POLICIES, self.time)
        if decision.action in ("retry", "reschedule", "rebuild"):
            self.history.retry_times.append(self.time)
        if decision.action == "rebuild":
            self.history.rebuilt.append(fault.scope)
        return ev.Decided(fault, decision)

    def go_on(self) -> None:
        """What is waited for comes."""
        m = self.machine
        if m.state is State.COLLECT:
            self.feed(ev.RolloutComplete(ref(min(m.pending), m.step), reused=False))
        elif m.state is State.TRAIN:
            self.trained.append(m.step + 1)
            result = StepResult(m.step + 1, METRICS, "d", 0.5, 0.1)
            self.feed(ev.TrainStepDone(result, m.plan.schedule.keys(m.step + 1), replayed=False))
        else:
            self.feed(ev.EvalDone(m.step, 0.5))

    def trouble(self, kind: str) -> None:
        """Something else happens, of what can happen in this state."""
        m, step = self.machine, self.machine.step + 1
        keys = tuple(sorted(m.pending)) or (evaluation_key(m.step),)
        faults: dict[str, tuple[FaultKind, str]] = {
            "batch failed": ("rollout_error", "rollout"),
            "rollout worker lost": ("worker_lost", "rollout"),
            "rank lost": ("worker_lost", "train"),
            "step failed": ("train_error", "train"),
            "out of memory": ("train_oom", "train"),
        }
        if kind == "timeout":
            self.time = max(self.time, m.deadline)
            self.feed(ev.TimedOut())
        elif kind == "late batch":
            self.feed(ev.RolloutComplete(ref(BatchKey(0, 0), 0), reused=False))
        else:
            name, role = faults[kind]
            self.feed(ev.FaultSeen(Fault(name, role, f"step {step}", "x", step, keys if role == "rollout" else ())))

    def check(self) -> None:
        """A wait is one of the known ones, and bounded."""
        if not self.machine.terminal:
            assert self.machine.state in WAITS
            assert self.machine.deadline < float("inf")
            assert self.machine.deadline >= self.time


@given(st.lists(st.sampled_from(("fine", *TROUBLES)), max_size=60))
def test_no_order_of_events_leaves_it_stuck_and_a_run_that_is_done_trained_each_step_once(events: list[str]) -> None:
    run = Run()
    for event in events:
        if run.machine.terminal:
            break
        if event == "fine":
            run.go_on()
        else:
            run.trouble(event)
        run.check()
    for _ in range(100):
        if run.machine.terminal:
            break
        run.go_on()
        run.check()
    assert run.machine.state in TERMINAL
    if run.machine.state is State.DONE:
        assert run.trained == [1, 2, 3]


@settings(max_examples=60)
@given(st.data())
def test_trouble_without_end_is_ended_by_the_budgets(data: st.DataObject) -> None:
    """However often it goes on for a moment: the window's budget, here all in one window, ends in SAFE_MODE."""
    run = Run(total=4)
    real = tuple(kind for kind in TROUBLES if kind != "late batch")
    while not run.machine.terminal:
        assert run.decisions <= CONFIG.severity_thresholds.retries_per_window + 1, "no budget ends it"
        run.time = 0.0  # all of it within one window
        run.trouble(data.draw(st.sampled_from(real)))
        if not run.machine.terminal and data.draw(st.booleans()):
            run.go_on()
    assert run.machine.state in (State.SAFE_MODE, State.DONE)


@given(st.sampled_from(get_args(FaultKind)), st.sampled_from(["rollout", "train"]), st.integers(0, 50))
def test_one_scope_is_never_tried_more_often_than_its_budget(kind: FaultKind, role: str, others: int) -> None:
    history = History()
    actions = []
    for _ in range(20):
        fault = Fault(kind, role, "step 1", "x", 1)
        history.faults.append((kind, "step 1"))
        decision = decide(fault, history, CONFIG, POLICIES, now=float(others) * 1e6)
        if decision.action == "rebuild":
            history.rebuilt.append("step 1")
        actions.append(decision.action)
    tries = actions.index("safe_mode")
    assert tries <= CONFIG.rollout_retry_times + 2
    assert set(actions[tries:]) == {"safe_mode"}


def _all_events() -> list[type[ev.Event]]:
    return [kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event) and kind.name]


@pytest.mark.parametrize("kind", [kind for kind in _all_events() if kind is not ev.Confirmed], ids=lambda k: k.name)
def test_nothing_but_a_confirmation_leaves_safe_mode(kind: type[ev.Event]) -> None:
    event = _made(kind)
    machine = Machine(plan(), state=State.SAFE_MODE, step=2)
    try:
        after, commands = advance(machine, event, now=0.0)
    except VerlError:
        return
    assert (after, commands) == (machine, ())


def _made(kind: type[ev.Event]) -> ev.Event:
    fault = Fault("worker_lost", "train", "step 1", "x", 1)
    values: dict[str, object] = {"fault": fault, "decision": decide(fault, History(), CONFIG, POLICIES, 0.0)}
    values |= {"ref": ref(BatchKey(0, 0), 0), "result": StepResult(3, METRICS, "d", 0.5, 0.1)}
    return kind(**{field.name: values.get(field.name, 0) for field in fields(kind)})
