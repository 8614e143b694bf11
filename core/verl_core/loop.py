"""The run, on one screen.

prompt order → batch (index, policy version, seeds) → worker: generate → score → commit → state log → training step on
its committed batches → state log → every m steps a checkpoint → publish weights → next.

The machine decides (pure), the loop carries out: each event is journalled with the state that it led to, then its
commands run. Nothing blocks but waiting for workers, and that is bounded by the state's deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import cast

from .errors import DamagedError, InputError, SafeModeError
from .fleet import Call
from .parts import Parts
from .recovery.supervisor import fault_of
from .state import events as ev
from .state.machine import Machine, State, advance
from .types import (
    Alert,
    BatchKey,
    BatchRef,
    CheckpointRef,
    CheckpointState,
    Fault,
    PlatformKey,
    Reply,
    RunFinished,
    StepResult,
)
from .workers import Loaded, RankState, StepCall, Weights


class Controller:
    """Feeds events to the machine until the run is over."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.history = parts, parts.history
        self.machine = Machine(parts.plan)
        self.save_requested = False

    def run(self) -> RunFinished:
        """To the end, to ``--until-step``, or to the error that ends it. Everything committed stays committed."""
        try:
            self.feed(self.parts.opened)
            while not self.machine.terminal:
                event = self._next_event()
                if event is not None:
                    self.feed(event)
            self.parts.writes.barrier()
        except BaseException as error:
            self.note("stopped", {"reason": f"{type(error).__name__}: {error}"})
            raise
        finally:
            self._tell_news()
            self.parts.writes.close()
            self.parts.cluster.close()
            self.parts.release()
        return self._finished()

    def feed(self, event: ev.Event) -> None:
        """One event and all that follows from it at once."""
        waiting = deque([event])
        while waiting:
            event = waiting.popleft()
            self.machine, commands = advance(self.machine, event, self.parts.cluster.now())
            self.note(event.name, event)
            self._observe(event)
            for command in commands:
                waiting.extend(self._execute(command))

    def note(self, event: str, payload: object) -> None:
        """A line in the state log, taken into the history as a restart would read it."""
        self.history.add(self.parts.journal.record(event, self.machine.state, payload))

    def _next_event(self) -> ev.Event | None:
        self.parts.writes.check()
        self._tell_news()
        now = self.parts.cluster.now()
        if now >= self.machine.deadline:
            return ev.TimedOut()
        heard = self.parts.fleet.poll(min(self.machine.deadline - now, 1.0))
        return None if heard is None else self._heard(*heard)

    def _heard(self, call: Call, reply: Reply) -> ev.Event | None:
        if isinstance(reply.error, InputError | DamagedError):
            raise reply.error
        if reply.error is not None:
            return ev.FaultSeen(self._fault(call, reply.error))
        if call.method == "generate":
            return ev.RolloutComplete(cast(BatchRef, reply.value), reused=False, durable=self.parts.durable)
        if call.method == "evaluate":
            return ev.EvalDone(call.step, cast(float, reply.value))
        if call.method == "step" and not self.parts.fleet.stepping():
            result, known = cast(StepResult, reply.value), self.history.steps.get(call.step)
            if known is not None and known.policy_digest != result.policy_digest:
                self._differs(f"step {call.step}", known.policy_digest, result.policy_digest)
            return ev.TrainStepDone(result, self.parts.plan.schedule.keys(call.step), replayed=known is not None)
        return None

    def _fault(self, call: Call, error: BaseException) -> Fault:
        keys = call.keys or (self.machine.pending if call.worker.role == "rollout" else ())
        return fault_of(error, call.worker.role, call.step, keys)

    def _execute(self, command: ev.Command) -> Iterable[ev.Event]:
        match command:
            case ev.Prepare():
                return self._prepare()
            case ev.Dispatch(step, keys, again):
                return self._dispatch(step, keys, again)
            case ev.Train(step):
                refs = tuple(self.parts.committed[key] for key in self.parts.plan.schedule.keys(step))
                self.parts.fleet.begin_step(step, StepCall(step, refs))
            case ev.Evaluate(step, again):
                self._evaluate(step, again)
            case ev.Save(step):
                self._save(step)
            case ev.Decide(fault):
                return [ev.Decided(fault, self.parts.decide(fault, self.history))]
            case ev.Emit(event):
                return [event]
        return []

    def _prepare(self) -> list[ev.Event]:
        """Resume is not a mode: load the newest good state, or none; the schedule says what comes after it."""
        self.parts.writes.barrier()  # the attempt is on record before it changes anything
        swept = self.parts.sweep()
        if swept:
            self.note("swept", {"names": swept})
        found = self.parts.start(self._condemn)
        step = found[0].step if found else 0
        self.parts.fleet.start()
        timeout_s = self.parts.plan.timeout_s[State.PREPARE]
        loaded = cast(Loaded, self.parts.fleet.ask_ranks("load", found[1] if found else None, timeout_s)[0])
        known = self.history.digest(step)
        if known and known != loaded.policy_digest:
            self._differs(f"state of step {step}", known, loaded.policy_digest, loaded.platform)
        mode = "exact" if self.parts.exact else "close"
        return [ev.Prepared(step, loaded.policy_digest, loaded.platform, mode)]

    def _condemn(self, ref: CheckpointRef, reason: str) -> None:
        self.note("condemned", {"kind": "checkpoint", "step": ref.step, "name": ref.name, "reason": reason})
        self.parts.alerts.send(Alert("medium", f"damaged checkpoint {ref.name}", reason, ref.step))

    def _dispatch(self, step: int, keys: Sequence[BatchKey], again: bool) -> list[ev.Event]:
        fleet = self.parts.fleet
        if again:
            keys = fleet.replace_holders(keys)
        there = [key for key in keys if key in self.parts.committed]
        missing = tuple(key for key in keys if key not in self.parts.committed)
        if missing:
            fleet.publish(self._weights, step - 1)
            fleet.generate([self.parts.plan.schedule.spec(key) for key in missing], step)
        reused = [ev.RolloutComplete(self.parts.committed[key], reused=True) for key in there]
        return [ev.RolloutDispatched(step, missing), *reused]

    def _evaluate(self, step: int, again: bool) -> None:
        spec = self.parts.eval_spec(step)
        if again:
            self.parts.fleet.replace_holders([spec.key])
        self.parts.fleet.publish(self._weights, step)
        self.parts.fleet.evaluate(spec, step)

    def _save(self, step: int) -> None:
        self.save_requested = False
        ranks = cast(list[RankState], self.parts.fleet.ask_ranks("state", None, self.parts.plan.timeout_s[State.TRAIN]))
        files = {**self.parts.save_files(self.history, step), **ranks[0].files}
        tensors = {name: [rank.tensors[name] for rank in ranks] for name in ranks[0].tensors}
        facts = {"policy_digest": ranks[0].policy_digest}
        self.parts.keeper.save(CheckpointState(step, self.parts.branch, self.parts.attempt, tensors, files, facts))

    def _observe(self, event: ev.Event) -> None:
        """Bookkeeping and observers, once an event."""
        tell = self.parts.observers
        match event:
            case ev.Prepared(step):
                tell.run_started(self.history.run_id, self.parts.attempt, step)
            case ev.RolloutComplete(ref):
                self.parts.committed[ref.key] = ref
                tell.rollout_committed(ref)
            case ev.TrainStepDone(result, keys):
                self.parts.store.drop(keys)
                for sink in self.parts.metrics:
                    sink.emit(result.step, self.history.steps[result.step].metrics)
                tell.step_finished(result)
                if self.save_requested:
                    self._save(result.step)
            case ev.FaultSeen(fault):
                tell.fault_detected(fault)
            case ev.Decided(fault, decision):
                self.parts.alerts.decided(fault, decision, self.parts.writes)
                tell.recovery_finished(fault, decision, 0.0)

    def _tell_news(self) -> None:
        """Journal the checkpoints that the writer thread committed, and let the oldest go."""
        for ref in self.parts.keeper.news():
            self.note("checkpoint_committed", {"ref": ref})
            self.parts.observers.checkpoint_committed(ref)
            expired = self.parts.keeper.expired(good=ref.step)
            if expired:
                self.note("checkpoints_deleted", {"steps": [old.step for old in expired]})
                self.parts.keeper.delete(expired)

    def _weights(self) -> Weights:
        timeout_s = self.parts.plan.timeout_s[State.TRAIN]
        return cast(Weights, self.parts.fleet.ask_ranks("weights", None, timeout_s)[0])

    def _differs(self, what: str, known: str, found: str, platform: PlatformKey | None = None) -> None:
        """On one platform in exact mode a replay must give the same bits; elsewhere the difference is journalled."""
        if self.parts.exact and platform in (None, self.history.platform):
            remedy = "machine, model folder or code changed; with training.deterministic=false it goes on from here"
            raise DamagedError(f"replayed to {found}, the state log says {known}", where=what, remedy=remedy)
        self.note("replay_differs", {"what": what, "known": known, "found": found})

    def _finished(self) -> RunFinished:
        state, history = self.machine.state, self.history
        if state is State.SAFE_MODE:
            raise SafeModeError(
                "the run is in SAFE_MODE: " + "; ".join(f"{kind} of {scope}" for kind, scope in history.faults[-3:]),
                where=self.parts.run_uri,
                remedy="see `verl-core status`, then `verl-core confirm RUN --name YOU --reason WHY` and run again",
            )
        result = RunFinished(state, history.step, history.policy_digest, tuple(history.rewards))
        self.parts.observers.run_finished(result)
        return result
