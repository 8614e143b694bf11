"""How each command of the machine is carried out, with the parts of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from .errors import DamagedBatch, DamagedError
from .parts import Parts
from .state import events as ev
from .state.machine import State
from .state.runtime import pack
from .types import Alert, BatchKey, BatchRef, BatchSpec, CheckpointRef, CheckpointState, Fault, StepResult
from .workers import Loaded, RankState, StepCall, Weights


class Actions:
    """``note`` writes a line into the state log, and into ``parts.history``."""

    def __init__(self, parts: Parts, note: Callable[[str, object], None]) -> None:
        self._parts, self._note = parts, note

    def prepare(self, again: bool) -> ev.Prepared:
        """Resume is not a mode: load the newest good state, or none; the schedule says what comes after it.

        ``again``: the same, but only the training group is started anew.
        """
        parts = self._parts
        parts.writes.barrier()  # what led here is on record before it changes anything
        swept = [] if again else parts.sweep()
        if swept:
            self._note("swept", {"names": swept})
        found = parts.start(self._condemn, again)
        step = found[0].step if found else 0
        journalled = step in parts.history.checkpoints
        if found and not journalled and not parts.keeper.here_alone(found[0]):  # killed between the commit and its line
            self._note("checkpoint_committed", {"ref": found[0]})
        if again:
            parts.fleet.restart_ranks()
        else:
            parts.fleet.start()
        timeout_s = parts.plan.timeout_s[State.PREPARE]
        loaded = cast(Loaded, parts.fleet.ask_ranks("load", found[1] if found else None, timeout_s)[0])
        known = parts.history.digest(step)
        if known and known != loaded.policy_digest:  # loading is exact on every platform
            what = f"the loaded policy is {loaded.policy_digest}, the state log says {known}"
            raise DamagedError(what, where=f"step {step}", remedy="restore the model folder that the run began with")
        return ev.Prepared(step, loaded.policy_digest, loaded.platform, "exact" if parts.exact else "close")

    def dispatch(self, step: int, keys: Sequence[BatchKey], again: bool) -> list[ev.Event]:
        """Generation is never repeated: a batch that is committed is reported, the others go to workers."""
        fleet, committed = self._parts.fleet, self._parts.committed
        if again:
            mine = set(self._parts.plan.schedule.keys(step))
            keys = [key for key in fleet.replace_holders(keys) if key in mine]
        missing = tuple(key for key in keys if key not in committed)
        if missing:
            fleet.publish(self._weights, step - 1)
            fleet.generate([self._spec(key) for key in missing], step)
        reused = [ev.RolloutComplete(committed[key], reused=True) for key in keys if key in committed]
        return [ev.RolloutDispatched(step, missing), *reused]

    def _spec(self, key: BatchKey) -> BatchSpec:
        """What was made before gets the reward that it had, so that it is the same again."""
        return replace(self._parts.plan.schedule.spec(key), former=self._parts.history.swaps_since(key))

    def made(self, ref: BatchRef) -> ev.RolloutComplete:
        """Hold a batch that is made again against its record, as a step is (see ``trained``)."""
        parts, known = self._parts, self._parts.history.batches.get(ref.key)
        if known is not None and known.samples_hash != ref.samples_hash:
            what = f"made again, the batch is {ref.samples_hash}, the state log says {known.samples_hash}"
            if parts.exact and parts.history.same_platform(known.attempt, parts.attempt):
                raise DamagedError(what, where=str(ref.key), remedy="machine, model library or code changed; undo that")
            self._note("replay_differs", {"batch": str(ref.key), "reason": what})
        return ev.RolloutComplete(ref, reused=False, durable=parts.durable)

    def condemn_batches(self, step: int, error: DamagedBatch) -> Fault:
        """Put aside the batches of a step that cannot be read, once that is on record: they are made again, at their
        own policy version, which is the one that training holds."""
        parts = self._parts
        refs = [parts.committed[key] for key in parts.plan.schedule.keys(step)]
        damaged = parts.store.damaged(refs)
        if not damaged:
            raise error
        for ref, reason in damaged.items():
            self._note("condemned", {"kind": "batch", "key": ref.key, "name": str(ref.key), "reason": str(reason)})
            self._parts.alerts.send(Alert("medium", f"batch {ref.key} is damaged", f"{reason}; made again", step))
        parts.writes.barrier()
        for ref in damaged:
            parts.store.condemn(ref)
            del parts.committed[ref.key]
        keys = tuple(ref.key for ref in damaged)
        return Fault("damage", "rollout", f"batch {', '.join(map(str, keys))}", str(error), step, keys)

    def train(self, step: int) -> None:
        refs = tuple(self._parts.committed[key] for key in self._parts.plan.schedule.keys(step))
        self._parts.fleet.begin_step(step, StepCall(step, refs))

    def trained(self, result: StepResult) -> ev.TrainStepDone:
        """Hold a step that is run again against its record: on one platform, in exact mode, its bits must be the same;
        elsewhere the difference is journalled, and what was saved from that step on is superseded."""
        parts, known = self._parts, self._parts.history.steps.get(result.step)
        if known is not None and known.policy_digest != result.policy_digest:
            what = f"run again, the step gave {result.policy_digest}, the state log says {known.policy_digest}"
            if parts.exact and parts.history.same_platform(known.attempt, parts.attempt):
                remedy = "machine, model folder or code changed; with training.deterministic=false it goes on from here"
                raise DamagedError(what, where=f"step {result.step}", remedy=remedy)
            self._note("replay_differs", {"step": result.step, "reason": what})
            parts.keeper.supersede(result.step, self._condemn)
        return ev.TrainStepDone(result, parts.plan.schedule.keys(result.step), replayed=known is not None)

    def evaluate(self, step: int, again: bool) -> None:
        spec = self._parts.eval_spec(step)
        if again:
            self._parts.fleet.replace_holders([spec.key])
        self._parts.fleet.publish(self._weights, step)
        self._parts.fleet.evaluate(spec, step)

    def save(self, step: int) -> None:
        """Copy the state of all ranks, and hand it to the writer thread."""
        parts = self._parts
        ranks = cast(list[RankState], parts.fleet.ask_ranks("state", None, parts.plan.timeout_s[State.TRAIN]))
        rng = {"rng_state.msgpack": pack([rank.rng for rank in ranks])}
        files = {**parts.save_files(step), **ranks[0].files, **rng}
        tensors = {name: [rank.tensors[name] for rank in ranks] for name in ranks[0].tensors}
        facts = {"policy_digest": ranks[0].policy_digest}
        parts.keeper.save(CheckpointState(step, parts.branch, parts.attempt, tensors, files, facts))

    def tell_news(self) -> None:
        """Journal the checkpoints that the writer thread committed, and let the oldest go."""
        parts = self._parts
        for saved in parts.keeper.news():
            self._note("checkpoint_committed", {"ref": saved.ref})
            parts.observers.checkpoint_committed(saved.ref)
            if saved.expired:
                self._note("checkpoints_deleted", {"steps": [old.step for old in saved.expired]})
                parts.keeper.delete(saved.expired)

    def _condemn(self, ref: CheckpointRef, reason: str) -> None:
        self._note("condemned", {"kind": "checkpoint", "step": ref.step, "name": ref.name, "reason": reason})
        self._parts.alerts.send(Alert("medium", f"checkpoint {ref.name} is not used any more", reason, ref.step))

    def _weights(self) -> Weights:
        return cast(Weights, self._parts.fleet.ask_ranks("weights", None, self._parts.plan.timeout_s[State.TRAIN])[0])
