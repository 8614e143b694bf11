"""A whole run without a model: the real controller, state log, writer, checkpointer and retention, on one thread.

What the product may be held to after a power cut is promised as soon as it is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_core.alerts import Alerts
from verl_core.assemble import committed_batches, start_from
from verl_core.checkpoint.keeper import Keeper
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.checkpoint.when import SaveRule
from verl_core.errors import VerlError
from verl_core.fleet import Fleet
from verl_core.loop import Controller
from verl_core.observers import Observers
from verl_core.parts import Parts
from verl_core.protocols import FileStorage, Worker
from verl_core.rollout.handover import HandOver
from verl_core.rollout.writer import AtomicWriter
from verl_core.state import events as ev
from verl_core.state.claim import claim_prefix
from verl_core.state.folder import CHECKPOINTS, LOG, ROLLOUTS, OpenRun, open_run
from verl_core.state.journal import Journal
from verl_core.state.machine import Plan, State
from verl_core.state.runtime import RuntimeFile
from verl_core.types import (
    BatchKey,
    BatchRef,
    BatchSpec,
    CheckpointRef,
    CheckpointState,
    Decision,
    Fault,
    RunIdentity,
    StagedBatch,
    WorkerId,
)
from verl_core_storage.local import LocalStorage

from .small_workers import NOW, SCHEDULE, STEPS, InOrder, OneThread, Promise, Rollout, Trainer


class PromisingWriter(AtomicWriter):
    """What a commit returns is promised."""

    def __init__(self, storage: FileStorage, identity: RunIdentity, promise: Promise) -> None:
        super().__init__(storage, identity, clock=lambda: NOW)
        self._promise = promise

    def commit(self, staged: StagedBatch) -> BatchRef:
        ref = super().commit(staged)
        self._promise("batch", f"{ref.key.epoch} {ref.key.batch}", ref.samples_hash)
        return ref


class PromisingCheckpointer(ShardedCheckpointer):
    """What a save returns is promised, from where the state log stands: lines after it may take it back."""

    def __init__(self, storage: FileStorage, identity: RunIdentity, promise: Promise) -> None:
        super().__init__(storage, identity, clock=lambda: NOW)
        self._promise = promise

    def save(self, state: CheckpointState) -> CheckpointRef:
        ref = super().save(state)
        self._promise("rotten", str(ref.step), "")
        self._promise("save", str(ref.step), f"{ref.attempt} {ref.summary_hash}")
        return ref


# --- the run ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """``keep`` checkpoints; ``log_apart``: the state log lies on a storage of its own."""

    keep: int = 1
    log_apart: bool = False

    def places(self, root: str) -> tuple[LocalStorage, LocalStorage]:
        run = LocalStorage(f"{root}/run")
        return run, LocalStorage(f"{root}/logs") if self.log_apart else run

    def open(self, root: str, promise: Promise) -> OpenRun:
        """Open the run folder, write down the inputs, claim both prefixes: what ``assemble`` does before its parts."""
        storage, log_storage = self.places(root)
        run = open_run(storage, log_storage, LOG, resume="auto", code_version="0")
        try:
            promise("run", "id", run.run_id)
            for name in ("config.yaml", "orchestration.json"):
                if storage.stat(name) is None or storage.get(name) != b"{}":
                    storage.put(name, b"{}")
                promise("input", name, "{}")
            for name in (ROLLOUTS, CHECKPOINTS):
                claim_prefix(storage.child(name), run.run_id)
                promise("claim", name, run.run_id)
        except BaseException:
            run.unlock()
            raise
        return run

    def journal(self, run: OpenRun, writes: InOrder) -> Journal:
        identity = (run.run_id, run.history.branch, run.attempt, run.nonce)
        return Journal(run.log_storage, run.log_path, run.log, writes, identity=identity, wall=lambda: NOW)

    def controller(self, root: str, promise: Promise, last_step: int) -> Controller:
        """The product's own, up to ``last_step``; what ``assemble`` does after the inputs were read."""
        run, (storage, _) = self.open(root, promise), self.places(root)
        identity = RunIdentity(run.run_id, run.history.branch, run.attempt)
        writer = PromisingWriter(storage.child(ROLLOUTS), identity, promise)
        checkpointer = PromisingCheckpointer(storage.child(CHECKPOINTS), identity, promise)
        writes, cluster, observers = InOrder(promise), OneThread(), Observers()
        store, keeper = HandOver(writer, writes), Keeper(checkpointer, writes, self.keep)

        def factory(worker: WorkerId) -> Callable[[], Worker]:
            return partial(Rollout if worker.role == "rollout" else Trainer, store)

        timeouts = dict.fromkeys(State, 60.0)
        parts = Parts(
            run_uri=run.storage.uri,
            plan=Plan(SCHEDULE, STEPS, last_step, SaveRule.every(1), eval_every=0, timeout_s=timeouts),
            opened=ev.Opened(os.getpid(), "host", "0", "config", "data", STEPS),
            branch=identity.branch,
            attempt=identity.attempt,
            exact=True,
            durable=True,
            cluster=cluster,
            fleet=Fleet(cluster, factory, 1, 1),
            store=store,
            keeper=keeper,
            journal=self.journal(run, writes),
            runtime=RuntimeFile(run.storage, writes, 500, bytes),
            writes=writes,
            history=run.history,
            committed=committed_batches(writer, run.history, SCHEDULE),
            sweep=lambda: [*writer.sweep(), *checkpointer.sweep()],
            start=partial(start_from, "auto", keeper, run.history, run.storage.uri),
            save_files=lambda step: {"scheduler.json": b"%d" % step},
            decide=_no_decision,
            eval_spec=lambda step: BatchSpec(BatchKey(-1, step), step, ()),
            observers=observers,
            alerts=Alerts((), observers),
            metrics=(),
            release=run.release,
        )
        return Controller(parts)


def _no_decision(fault: Fault, history: object) -> Decision:
    raise VerlError(f"nothing may fail here: {fault.evidence}", where=fault.scope)
