"""The training state machine, pure: ``advance(machine, event, now) -> (machine, commands)``.

``INIT → PREPARE → ROLLOUT → COLLECT → TRAIN → EVAL → ROLLOUT … → DONE``, plus ``SAFE_MODE`` and ``FAILED``. Time comes
in as ``now`` (monotonic seconds). An event that a state does not know is an error of the caller; one that comes late
(a batch that another worker committed meanwhile) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from ..checkpoint.when import BEGIN, Measured, SaveRule, Trend
from ..errors import VerlError
from ..types import BatchKey, Fault
from . import events as ev
from .schedule import Schedule


class State(StrEnum):
    INIT = "INIT"
    PREPARE = "PREPARE"
    ROLLOUT = "ROLLOUT"
    COLLECT = "COLLECT"
    TRAIN = "TRAIN"
    EVAL = "EVAL"
    SAFE_MODE = "SAFE_MODE"
    DONE = "DONE"
    FAILED = "FAILED"


TERMINAL = frozenset({State.SAFE_MODE, State.DONE, State.FAILED})


@dataclass(frozen=True, slots=True)
class Plan:
    """What the machine needs to know of the config."""

    schedule: Schedule
    total_steps: int
    last_step: int  # the same, or fewer with --until-step
    saves: SaveRule  # the last step is always saved
    eval_every: int  # 0: never
    timeout_s: dict[State, float]  # one for each state that waits
    trend: Callable[[int], Trend] = Trend  # of the steps up to this one, as the state log has them


@dataclass(frozen=True, slots=True)
class Machine:
    plan: Plan
    state: State = State.INIT
    step: int = 0  # finished steps = policy version
    trend: Trend = BEGIN  # of these steps
    pending: frozenset[BatchKey] = frozenset()  # batches of step + 1 that are not committed yet
    deadline: float = float("inf")
    stopped: bool = False  # at the step that was asked for, before the end

    @property
    def terminal(self) -> bool:
        return self.stopped or self.state in TERMINAL


def evaluation_key(step: int) -> BatchKey:
    """What an evaluation goes by where a batch has its key; it is never committed."""
    return BatchKey(-1, step)


Result = tuple[Machine, tuple[ev.Command, ...]]


def advance(machine: Machine, event: ev.Event, now: float) -> Result:
    """One transition. Raises VerlError for an event that the state cannot meet."""
    handler = _ANYWHERE.get(event.name) or _TABLE.get((machine.state, event.name))
    if handler is None:
        raise VerlError(f"event {event.name!r} is not expected in state {machine.state}", where="state machine")
    new, commands = handler(machine, event)
    if new.state is not machine.state or event.name in ("retry_train", "rebuild"):
        new = replace(new, deadline=now + machine.plan.timeout_s.get(new.state, float("inf")))
    return new, commands


def _opened(m: Machine, _: ev.Event) -> Result:
    return replace(m, state=State.PREPARE), (ev.Prepare(),)


def _prepared(m: Machine, event: ev.Event) -> Result:
    assert isinstance(event, ev.Prepared)
    return _next_step(replace(m, step=event.step, trend=m.plan.trend(event.step)))


def _next_step(m: Machine) -> Result:
    if m.step >= m.plan.total_steps:
        return replace(m, state=State.DONE), ()
    if m.step >= m.plan.last_step:
        return replace(m, stopped=True), ()
    keys = m.plan.schedule.keys(m.step + 1)
    return replace(m, state=State.ROLLOUT, pending=frozenset(keys)), (ev.Dispatch(m.step + 1, keys),)


def _dispatched(m: Machine, _: ev.Event) -> Result:
    return replace(m, state=State.COLLECT), ()


def _complete(m: Machine, event: ev.Event) -> Result:
    assert isinstance(event, ev.RolloutComplete)
    if event.ref.key not in m.pending:
        return m, ()
    m = replace(m, pending=m.pending - {event.ref.key})
    return m, () if m.pending else (ev.Emit(ev.DataAvailable(m.step + 1)),)


def _retry_rollout(m: Machine, event: ev.Event) -> Result:
    assert isinstance(event, ev.RetryRollout)
    if m.state is State.TRAIN:  # a committed batch turned out to be damaged
        m = replace(m, pending=frozenset(event.keys))
    keys = tuple(k for k in event.keys if k in m.pending)
    return replace(m, state=State.ROLLOUT), (ev.Dispatch(m.step + 1, keys, again=True),)


def _data(m: Machine, _: ev.Event) -> Result:
    return replace(m, state=State.TRAIN), (ev.Train(m.step + 1),)


def _retry_train(m: Machine, _: ev.Event) -> Result:
    return m, (ev.Train(m.step + 1),)


def _save(m: Machine, _: ev.Event) -> Result:
    return m, (ev.Save(m.step),)


def _stop(m: Machine, _: ev.Event) -> Result:
    """With a save: after the training step or the evaluation that is under way; where none is, at once."""
    if m.state is State.TRAIN:
        due = m.plan.eval_every and (m.step + 1) % m.plan.eval_every == 0
        return replace(m, plan=replace(m.plan, last_step=m.step + 1, eval_every=m.plan.eval_every if due else 0)), ()
    saved = m.step == 0 or m.plan.saves.due(m.trend)
    m = replace(m, plan=replace(m.plan, last_step=m.step)) if m.state is State.EVAL else replace(m, stopped=True)
    return m, () if saved else (ev.Save(m.step),)


def _rebuild(m: Machine, _: ev.Event) -> Result:
    return replace(m, state=State.PREPARE, pending=frozenset()), (ev.Prepare(again=True),)


def _trained(m: Machine, event: ev.Event) -> Result:
    step = m.step + 1
    trend = m.plan.saves.after(m.trend, _measured(step, event))
    save = step == m.plan.last_step or m.plan.saves.due(trend)
    due = m.plan.eval_every and (step % m.plan.eval_every == 0 or step == m.plan.last_step)
    commands: list[ev.Command] = [ev.Save(step)] if save else []
    commands.append(ev.Evaluate(step) if due else ev.Emit(ev.EvalDone(step, None)))
    return replace(m, state=State.EVAL, step=step, trend=trend), tuple(commands)


def _measured(step: int, event: ev.Event) -> Measured:
    if isinstance(event, ev.TrainStepDone):
        return step, event.result.metrics.loss, event.result.metrics.kl
    return step, None, None


def _evaluated(m: Machine, _: ev.Event) -> Result:
    return _next_step(m)


def _timed_out(m: Machine, _: ev.Event) -> Result:
    if m.state is State.COLLECT:
        missing = tuple(sorted(m.pending))
        fault = Fault("rollout_timeout", "rollout", f"step {m.step + 1}", _waited(m), m.step + 1, missing)
    elif m.state is State.EVAL:
        late = (evaluation_key(m.step),)
        fault = Fault("rollout_timeout", "rollout", f"evaluation of step {m.step}", _waited(m), m.step, late)
    else:
        fault = Fault("timeout", "train", f"{m.state} of step {m.step + 1}", _waited(m), step=m.step + 1)
    return m, (ev.Emit(ev.FaultSeen(fault)),)


def _waited(m: Machine) -> str:
    missing = f", missing {', '.join(map(str, sorted(m.pending)))}" if m.pending else ""
    return f"{m.state} took longer than {m.plan.timeout_s[m.state]:g} s{missing}"


def _confirmed(m: Machine, _: ev.Event) -> Result:
    return Machine(m.plan), ()


def _fault(m: Machine, event: ev.Event) -> Result:
    assert isinstance(event, ev.FaultSeen)
    fault = event.fault
    waited_for = m.pending
    if m.state is State.EVAL:
        waited_for |= {evaluation_key(m.step)}
    if m.state is State.TRAIN and fault.kind == "damage":
        waited_for |= frozenset(m.plan.schedule.keys(m.step + 1))
    late = fault.role == "rollout" and waited_for.isdisjoint(fault.keys)
    if m.terminal or late:  # late: of batches that nobody waits for any more
        return m, ()
    return m, (ev.Decide(fault),)


def _decided(m: Machine, event: ev.Event) -> Result:
    assert isinstance(event, ev.Decided)
    fault, action, reason = event.fault, event.decision.action, event.decision.reason
    again = action in ("retry", "reschedule")
    follow: ev.Event
    if m.terminal:
        return m, ()
    if again and fault.role == "rollout" and m.state in (State.COLLECT, State.ROLLOUT, State.TRAIN):
        follow = ev.RetryRollout(m.step + 1, fault.keys or tuple(sorted(m.pending)), reason)
    elif again and fault.role == "rollout" and m.state is State.EVAL:
        return m, (ev.Evaluate(m.step, again=True),)
    elif again and fault.role == "train" and m.state is State.TRAIN:
        follow = ev.RetryTrain(m.step + 1, reason)
    elif action == "rebuild" or (again and fault.role == "train"):  # outside TRAIN there is no single thing to repeat
        follow = ev.Rebuild(m.step + 1, reason)
    elif action == "skip_step" and m.state is State.TRAIN:
        follow = ev.TrainStepSkipped(m.step + 1, m.plan.schedule.keys(m.step + 1), reason)
    elif action == "abort":
        return replace(m, state=State.FAILED), ()
    else:
        return replace(m, state=State.SAFE_MODE), ()
    return m, (ev.Emit(follow),)


Handler = Callable[[Machine, ev.Event], Result]

_TABLE: dict[tuple[State, str], Handler] = {
    (State.INIT, "opened"): _opened,
    (State.PREPARE, "prepared"): _prepared,
    (State.ROLLOUT, "rollout_dispatched"): _dispatched,
    (State.COLLECT, "rollout_complete"): _complete,
    (State.COLLECT, "retry_rollout"): _retry_rollout,
    (State.ROLLOUT, "retry_rollout"): _retry_rollout,
    (State.TRAIN, "retry_rollout"): _retry_rollout,
    (State.COLLECT, "data_available"): _data,
    (State.TRAIN, "retry_train"): _retry_train,
    (State.TRAIN, "train_step_done"): _trained,
    (State.TRAIN, "train_step_skipped"): _trained,
    (State.EVAL, "eval_done"): _evaluated,
    (State.SAFE_MODE, "confirmed"): _confirmed,
    **{(state, "timeout"): _timed_out for state in State if state not in TERMINAL},
    **{(state, "rebuild"): _rebuild for state in State if state not in TERMINAL},
    **{(state, "save"): _save for state in (State.ROLLOUT, State.COLLECT, State.EVAL)},
    **{(state, "stop"): _stop for state in State if state not in TERMINAL},
}
_ANYWHERE: dict[str, Handler] = {"fault": _fault, "decision": _decided}
for _late in (State.PREPARE, State.ROLLOUT, State.TRAIN, State.EVAL):
    _TABLE[(_late, "rollout_complete")] = _complete
