"""The run, on one screen.

prompt order → batch (index, policy version, seeds) → worker: generate → score → commit → state log → training step on
its committed batches → state log → every m steps a checkpoint → publish weights → next.

The machine decides (pure), the loop carries out: each event is journalled with the state that it led to, then its
commands run (``actions``). Nothing blocks but waiting for workers, and that is bounded by the state's deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import cast

from .actions import Actions
from .errors import DamagedBatch, DamagedError, InputError, SafeModeError, VerlError, WorkerError
from .fleet import Call
from .masking import masked
from .parts import Parts
from .recovery.supervisor import fault_of
from .state import events as ev
from .state.machine import Machine, State, advance
from .types import Alert, BatchRef, Decision, Fault, Reply, RunFinished, StepResult


class Controller:
    """Feeds events to the machine until the run is over."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.history = parts, parts.history
        self.machine = Machine(parts.plan)
        self.actions = Actions(parts, self.note)
        self.save_requested = False
        self.stop_requested = ""  # who asked; set from signal handlers and other threads
        self._stopping = self._begun = False
        self._recovering: list[tuple[Fault, Decision, float]] = []  # since when

    def run(self) -> RunFinished:
        """To the end, to ``--until-step``, or to the error that ends it. Everything committed stays committed."""
        try:
            self.feed(self.parts.opened)
            while not self.machine.terminal:
                event = self._next_event()
                if event is not None:
                    self.feed(event)
            if self.machine.state is State.SAFE_MODE:
                self._keep_runtime()
            self.parts.writes.barrier()
        except BaseException as error:
            with suppress(VerlError):  # a broken storage is the error that is under way
                self.note("stopped", {"reason": masked(f"{type(error).__name__}: {error}")})
                self._keep_runtime()
            raise
        finally:
            self._close()
        return self._finished()

    def feed(self, event: ev.Event) -> None:
        """One event and all that follows from it at once."""
        waiting: deque[ev.Event] = deque([event])
        while waiting:
            event = waiting.popleft()
            self.machine, commands = advance(self.machine, event, self.parts.cluster.now())
            self.note(event.name, event)
            self._observe(event)
            try:
                for command in commands:
                    waiting.extend(self._execute(command))
            except WorkerError as error:  # of the training group: what was to follow is decided anew
                waiting = deque([ev.FaultSeen(fault_of(error, "train", self.machine.step + 1, ()))])

    def note(self, event: str, payload: object) -> None:
        """A line in the state log, taken into the history as a restart would read it."""
        self.history.add(self.parts.journal.record(event, self.machine.state, payload))

    def _next_event(self) -> ev.Event | None:
        self.parts.writes.check()
        self.actions.tell_news()
        if self.stop_requested and not self._stopping:
            self._stopping = True
            return ev.StopAsked(self.stop_requested)
        if risk := self.parts.save_age.risk(self.machine.step, self.parts.cluster.now()):
            self.save_requested = True
            text = f"{risk}; the run saves by itself. A shorter interval, or more room on the GPU, avoids that"
            self.parts.alerts.send(Alert("medium", "GPU memory is nearly full", text, self.machine.step))
        if self.save_requested and self.machine.state is not State.TRAIN and self.machine.step:
            self.save_requested = False
            return ev.SaveAsked(self.machine.step)
        now = self.parts.cluster.now()
        if now >= self.machine.deadline:
            return ev.TimedOut()
        heard = self.parts.fleet.poll(min(self.machine.deadline - now, 1.0))
        return None if heard is None else self._heard(*heard)

    def _heard(self, call: Call, reply: Reply) -> ev.Event | None:
        """What a worker's answer means; None when others are still to come."""
        if isinstance(reply.error, DamagedBatch) and call.method == "step":
            return ev.FaultSeen(self.actions.condemn_batches(call.step, reply.error))
        if isinstance(reply.error, InputError | DamagedError):
            raise reply.error
        if reply.error is not None:
            keys = call.keys or self.parts.fleet.held(call.worker)
            return ev.FaultSeen(fault_of(reply.error, call.worker.role, call.step, keys))
        if call.method == "generate":
            return self.actions.made(cast(BatchRef, reply.value))
        if call.method == "evaluate" and (self.machine.state, call.step) == (State.EVAL, self.machine.step):
            return ev.EvalDone(call.step, cast(float, reply.value))
        if call.method == "step" and not self.parts.fleet.stepping():
            return self.actions.trained(cast(StepResult, reply.value))
        return None

    def _execute(self, command: ev.Command) -> Iterable[ev.Event]:
        match command:
            case ev.Prepare(again):
                prepared = self.actions.prepare(again)
                self.parts.save_age.saved(prepared.step, self.parts.cluster.now())
                return [prepared]
            case ev.Dispatch(step, keys, again):
                return self.actions.dispatch(step, keys, again)
            case ev.Train(step):
                self.actions.train(step)
            case ev.Evaluate(step, again):
                self.actions.evaluate(step, again)
            case ev.Save(step):
                self.actions.save(step)
                self.parts.save_age.saved(step, self.parts.cluster.now())
            case ev.Decide(fault):
                return [ev.Decided(fault, self.parts.decide(fault, self.history))]
            case ev.Emit(event):
                return [event]
        return []

    def _observe(self, event: ev.Event) -> None:
        """Bookkeeping and observers, once an event."""
        tell = self.parts.observers
        match event:
            case ev.Prepared(step) if not self._begun:
                self._begun = True
                self.parts.restored(step)
                tell.run_started(self.history.run_id, self.parts.attempt, step)
            case ev.RolloutComplete(ref):
                self.parts.committed[ref.key] = ref
                tell.rollout_committed(ref)
            case ev.TrainStepDone(result, keys):
                self.parts.store.drop(keys)
                self.parts.runtime.stepped(result.step)
                for sink in self.parts.metrics:
                    sink.emit(result.step, self.history.steps[result.step].metrics)
                tell.step_finished(result)
            case ev.FaultSeen(fault):
                tell.fault_detected(fault)
            case ev.Decided(fault, decision):
                self._recovering.append((fault, decision, self.parts.cluster.now()))
                self.parts.alerts.decided(fault, decision, self.parts.writes)
        if isinstance(event, ev.DataAvailable | ev.TrainStepDone | ev.EvalDone):
            for fault, decision, since in self._recovering:
                tell.recovery_finished(fault, decision, self.parts.cluster.now() - since)
            self._recovering.clear()

    def _close(self) -> None:
        """Everything in order, also when a step of it fails; the run's lock goes last."""
        with ExitStack() as last:
            last.callback(self.parts.release)
            last.callback(self.parts.cluster.close)
            last.callback(self.parts.writes.close)
            last.callback(self.parts.journal.settle)
            last.callback(self.actions.tell_news)
            last.callback(self.parts.keeper.close)

    def _keep_runtime(self) -> None:
        """Of a run that ends before its time; a start that was refused changes nothing."""
        if self._begun:
            self.parts.runtime.keep(self.history.step)

    def _finished(self) -> RunFinished:
        state, history = self.machine.state, self.history
        if state is State.SAFE_MODE:
            raise SafeModeError(
                "the run is in SAFE_MODE: " + "; ".join(f"{kind} of {scope}" for kind, scope in history.faults[-3:]),
                where=self.parts.run_uri,
                remedy="see `verl-core status`, then `verl-core confirm RUN --name YOU --reason WHY` and run again",
            )
        asked = self.stop_requested if self.machine.stopped and self._stopping else ""
        result = RunFinished(state, history.step, history.policy_digest, tuple(history.rewards), asked)
        self.parts.observers.run_finished(result)
        return result
