"""Whole runs, and run folders alone: the state log, its torn tails, who holds the run and what it claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from verl_core.state.audit import consumption_errors
from verl_core.state.claim import read_run_id
from verl_core.state.folder import CHECKPOINTS, LOG, ROLLOUTS
from verl_core.state.history import fold
from verl_core.state.journal import Entry, read_log
from verl_core.types import RunIdentity

from .crash_batches import inspect_batches
from .crash_check import Promises, Violation, must, nothing_staged, promised
from .crash_saves import inspect_saves, rot
from .small_run import PromisingCheckpointer, PromisingWriter, Shape
from .small_workers import SCHEDULE, STEPS, InOrder, Promise, digest_of, policy_after, reference


@dataclass(frozen=True, slots=True)
class Runs:
    """``go`` runs to the next step and ends, ``far`` two steps; ``late`` is a worker of an attempt that is over."""

    shape: Shape
    operations: ClassVar[Sequence[str]] = ("go", "far", "late", "rot")
    weight: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return f"run-keep{self.shape.keep}" + "-apart" * self.shape.log_apart

    @property
    def growing(self) -> Sequence[str]:
        return _logs(self.shape)

    def perform(self, root: str, operation: str, promise: Promise) -> None:
        storage, log_storage = self.shape.places(root)
        entries = read_log(log_storage, LOG).entries
        history = fold(entries)
        match operation:
            case "go" | "far":
                last = min(history.step + (1 if operation == "go" else 2), STEPS)
                self.shape.controller(root, promise, last).run()
            case "late" if history.step < STEPS and _dispatched(entries):
                writer = PromisingWriter(storage.child(ROLLOUTS), RunIdentity(history.run_id, 0, 0), promise)
                (key,) = SCHEDULE.keys(history.step + 1)
                spec, samples, _ = reference(key)
                writer.commit(writer.stage(spec, samples, worker="rollout-9", seed=0))
            case "rot":
                listed = _checkpointer(self.shape, root, history.run_id).list()
                rot(storage.child(CHECKPOINTS), listed, promise)

    def inspect(self, root: str, promises: Promises) -> None:
        entries = inspect_folder(self.shape, root, promises)
        history = fold(entries)
        storage, _ = self.shape.places(root)
        run_id = read_run_id(storage) if storage.stat("run.json") else ""
        found = inspect_batches(PromisingWriter(storage.child(ROLLOUTS), RunIdentity(run_id, 0, 0), _none), promises)
        ahead = history.committed.keys() - found
        must(not ahead, f"the state log speaks of batches that are not there: {sorted(ahead)}")
        kept = {
            key: value for key, value in promises.items() if key[0] != "save" or not _given_up(key[1], value, entries)
        }
        saves = inspect_saves(_checkpointer(self.shape, root, run_id), kept)
        rotten = {int(name) for name, _ in promised(promises, "rotten")}
        lost = history.checkpoints.keys() - rotten - set(saves)
        must(not lost, f"the state log speaks of checkpoints that are not there: {sorted(lost)}")
        if not rotten and any(kind == "save" for kind, _ in promises):
            must(bool(saves), "checkpoints were committed, and not one is left")

    def aim(self, root: str) -> int:
        """A step more than the state log knows."""
        _, log_storage = self.shape.places(root)
        return min(fold(read_log(log_storage, LOG).entries).step + 1, STEPS)

    def recover(self, root: str, aim: int, promise: Promise) -> None:
        result = self.shape.controller(root, promise, aim).run()
        must(result.step == aim, f"it ended as {result.state} at step {result.step}")

    def inspect_end(self, root: str, aim: int, promises: Promises) -> None:
        storage, _ = self.shape.places(root)
        entries = inspect_folder(self.shape, root, {})
        history = fold(entries)
        must(history.policy_digest == digest_of(policy_after(aim)), "the run ended with another policy")
        for error in consumption_errors(history):
            raise Violation(f"consumed wrongly: {error}")
        run_id = read_run_id(storage)
        for _, value in promised(promises, "run"):
            must(run_id == value, "the run has another id")
        writer = PromisingWriter(storage.child(ROLLOUTS), RunIdentity(run_id, 0, 0), _none)
        consumed = {key for step in range(1, aim + 1) for key in SCHEDULE.keys(step)}
        must(inspect_batches(writer, {}) == consumed, "the batches are not those that were consumed")
        kept = inspect_saves(_checkpointer(self.shape, root, run_id), {})
        wanted = list(range(1, aim + 1))[-self.shape.keep :]
        worked = any(entry.event == "train_step_done" and entry.attempt == history.attempt for entry in entries)
        must(kept == wanted if worked else kept[-len(wanted) :] == wanted, f"checkpoints kept: {kept}")
        for name in (ROLLOUTS, CHECKPOINTS):
            nothing_staged(storage.child(name))


@dataclass(frozen=True, slots=True)
class Folders:
    """``open`` holds the run and dies with it, ``close`` gives it back; ``line`` and ``lines`` append to the log."""

    shape: Shape
    operations: ClassVar[Sequence[str]] = ("open", "line", "lines", "close")
    weight: ClassVar[int] = 40

    @property
    def name(self) -> str:
        return "folder" + "-apart" * self.shape.log_apart

    @property
    def growing(self) -> Sequence[str]:
        return _logs(self.shape)

    def perform(self, root: str, operation: str, promise: Promise) -> None:
        run, writes = self.shape.open(root, promise), InOrder(promise)
        try:
            journal = self.shape.journal(run, writes)
            for number in range({"line": 1, "lines": 3}.get(operation, 0)):
                journal.record("said", "INIT", {"number": number, "text": "é" * 20})
            writes.barrier()
            if operation == "close":
                run.release()
        finally:
            run.unlock()

    def inspect(self, root: str, promises: Promises) -> None:
        inspect_folder(self.shape, root, promises)

    def aim(self, root: str) -> int:
        return 0

    def recover(self, root: str, aim: int, promise: Promise) -> None:
        self.perform(root, "line", promise)
        self.perform(root, "close", promise)

    def inspect_end(self, root: str, aim: int, promises: Promises) -> None:
        entries = inspect_folder(self.shape, root, promises)
        must(entries[-1].event == "said", "the last line is not the one appended")


def inspect_folder(shape: Shape, root: str, promises: Promises) -> Sequence[Entry]:
    """The entries of the state log: all that was promised, in an unbroken chain; and who the folder belongs to."""
    storage, log_storage = shape.places(root)
    entries = read_log(log_storage, LOG).entries
    for _, value in promised(promises, "log"):
        seq, _, digest = value.partition(" ")
        must(len(entries) > int(seq), f"line {seq} of the state log was durable, {len(entries)} lines are left")
        must(entries[int(seq)].hash == digest, f"line {seq} of the state log is another one")
    for _, value in promised(promises, "run"):
        must(storage.stat("run.json") is not None, "run.json is gone")
        must(read_run_id(storage) == value, "run.json names another run")
    for name, value in promised(promises, "claim"):
        must(storage.stat(f"{name}/RUN") is not None, f"the claim of {name} is gone")
        must(storage.get(f"{name}/RUN").decode() == value, f"{name} belongs to another run")
    for name, value in promised(promises, "input"):
        must(storage.stat(name) is not None, f"{name} is gone")
        must(storage.get(name).decode() == value, f"{name} is not as it was written")
    must(not entries or storage.stat("run.json") is not None, "there is a state log, and no run.json")
    return entries


def _dispatched(entries: Sequence[Entry]) -> bool:
    """Whether a worker can be late: batches are committed behind the line that sent somebody for them."""
    durable = max((entry.durable or 0 for entry in entries), default=0)
    return any(entry.event == "rollout_dispatched" and entry.seq < durable for entry in entries)


def _given_up(name: str, value: str, entries: Sequence[Entry]) -> bool:
    """Whether the state log gives up a checkpoint, in the attempt that promised it or later."""
    step, attempt, given_up = int(name), int(value.split()[0]), False
    for entry in entries:
        if entry.attempt >= attempt:
            payload = cast("Mapping[str, Any]", entry.payload)
            if entry.event == "checkpoints_deleted":
                given_up = given_up or step in payload["steps"]
            elif entry.event == "condemned":
                given_up = given_up or step == payload["step"]
            elif entry.event == "checkpoint_committed" and payload["ref"]["step"] == step:
                given_up = False
    return given_up


def _checkpointer(shape: Shape, root: str, run_id: str) -> PromisingCheckpointer:
    storage, _ = shape.places(root)
    return PromisingCheckpointer(storage.child(CHECKPOINTS), RunIdentity(run_id, 0, 0), _none)


def _logs(shape: Shape) -> Sequence[str]:
    return ("logs/state_log.jsonl",) if shape.log_apart else ("run/state_log.jsonl",)


def _none(kind: str, name: str, value: str) -> None: ...
