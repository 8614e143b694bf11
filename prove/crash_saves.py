"""Checkpoints alone: saves, repeated ones, one that fails, retention, damage and its condemnation, sweeps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from verl_core.checkpoint.retention import to_delete
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedCheckpoint, StorageFull
from verl_core.protocols import FileStorage
from verl_core.testing.faulty import FailingStorage
from verl_core.types import CheckpointRef, CheckpointState, RunIdentity, Slice
from verl_core_storage.local import LocalStorage

from .crash_check import Promises, must, next_attempt, nothing_staged, promised
from .small_run import PromisingCheckpointer
from .small_workers import Promise, digest_of, policy_after, tensors_of

_FILES = {"config.yaml": b"{}", "rng_state.msgpack": b""}


class Saves:
    """``save`` takes the step after the newest; ``again`` the newest itself; ``one`` and ``two`` keep so many."""

    operations: ClassVar[Sequence[str]] = ("save", "again", "full", "one", "two", "rot", "condemn", "sweep")
    weight: ClassVar[int] = 40

    def __init__(self) -> None:
        self.name, self.growing = "saves", ("attempt",)

    def perform(self, root: str, operation: str, promise: Promise) -> None:
        top = LocalStorage(root)
        storage, attempt = top.child("checkpoints"), next_attempt(top)
        checkpointer = _checkpointer(storage, attempt, promise)
        listed = checkpointer.list()
        newest = listed[0].step if listed else 0
        match operation:
            case "save" | "again":
                checkpointer.save(_state(newest + (operation == "save") or 1, attempt))
            case "full":
                with suppress(StorageFull):
                    _checkpointer(FailingStorage(storage, 7), attempt, promise).save(_state(newest + 1, attempt))
            case "one" | "two":
                keep_newest(checkpointer, 1 if operation == "one" else 2, promise)
            case "rot":
                rot(storage, listed, promise)
            case "condemn":
                for ref in listed[:1]:
                    promise("save", str(ref.step), "")
                    checkpointer.condemn(ref)
            case "sweep":
                checkpointer.sweep()

    def inspect(self, root: str, promises: Promises) -> None:
        inspect_saves(_checkpointer(_storage(root), 0, _no_promise), promises)

    def aim(self, root: str) -> int:
        return 0

    def recover(self, root: str, aim: int, promise: Promise) -> None:
        top = LocalStorage(root)
        storage, attempt = top.child("checkpoints"), next_attempt(top)
        checkpointer = _checkpointer(storage, attempt, promise)
        checkpointer.sweep()
        for ref in checkpointer.list():
            with suppress(DamagedCheckpoint):
                checkpointer.open(ref)
                break
            checkpointer.condemn(ref)
        listed = checkpointer.list()
        checkpointer.save(_state(listed[0].step if listed else 1, attempt))
        keep_newest(checkpointer, 1, promise)

    def inspect_end(self, root: str, aim: int, promises: Promises) -> None:
        storage = _storage(root)
        found = inspect_saves(_checkpointer(storage, 0, _no_promise), {})
        must(len(found) == 1, f"one is to be kept, there are {found}")
        nothing_staged(storage)


def keep_newest(checkpointer: ShardedCheckpointer, keep: int, promise: Promise) -> None:
    """Retention; the promise of what goes is taken back first."""
    refs = checkpointer.list()
    for old in to_delete(refs, keep, {refs[0].step} if refs else ()):
        promise("save", str(old.step), "")
        checkpointer.delete(old)


def rot(storage: FileStorage, listed: Sequence[CheckpointRef], promise: Promise) -> None:
    """A bit of the newest checkpoint flips on the disk."""
    for ref in listed[:1]:
        promise("save", str(ref.step), "")
        promise("rotten", str(ref.step), "yes")
        handle = os.open(f"{storage.uri}/{ref.name}/actor/manifest.json", os.O_RDWR)
        try:
            first = os.pread(handle, 1, 0)
            os.write(handle, bytes([first[0] ^ 1]))
            os.fsync(handle)
        finally:
            os.close(handle)


def inspect_saves(checkpointer: ShardedCheckpointer, promises: Promises) -> list[int]:
    """What is listed is good and of the policy that an undisturbed run has; what was promised is listed."""
    rotten = {int(name) for name, _ in promised(promises, "rotten")}
    found = {ref.step: ref for ref in checkpointer.list()}
    for step, ref in found.items():
        if step not in rotten:
            policy = checkpointer.open(ref).read("actor", Slice("w", (0,), (8,))).data
            must(bytes(policy) == policy_after(step), f"step {step} is another policy")
    for name, value in promised(promises, "save"):
        step = int(name)
        must(step in found, f"the checkpoint of step {step} was committed and is gone")
        must(value.endswith(found[step].summary_hash), f"the checkpoint of step {step} is not the one committed")
    return sorted(found)


def _storage(root: str) -> LocalStorage:
    return LocalStorage(f"{root}/checkpoints")


def _checkpointer(storage: FileStorage, attempt: int, promise: Promise) -> PromisingCheckpointer:
    return PromisingCheckpointer(storage, RunIdentity("run", 0, attempt), promise)


def _state(step: int, attempt: int) -> CheckpointState:
    policy = policy_after(step)
    tensors = {name: [chunks] for name, chunks in tensors_of(policy, "actor", "optimizer").items()}
    return CheckpointState(step, 0, attempt, tensors, _FILES, {"policy_digest": digest_of(policy)})


def _no_promise(kind: str, name: str, value: str) -> None: ...
