"""Batches alone: commits, repeated and late ones, one that fails, a condemned one, sweeps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from verl_core.errors import StorageFull
from verl_core.protocols import FileStorage
from verl_core.testing.faulty import FailingStorage
from verl_core.types import BatchKey, RunIdentity
from verl_core_storage.local import LocalStorage

from .crash_check import Promises, must, next_attempt, nothing_staged, promised
from .small_run import PromisingWriter
from .small_workers import Promise, reference

_FIRST, _SECOND = BatchKey(0, 0), BatchKey(0, 1)
_FILES = ["SUCCESS", "meta.json", "samples.jsonl"]


class Batches:
    """``first`` and ``second`` commit a batch (or adopt it), ``late`` does so as an attempt that is over."""

    operations: ClassVar[Sequence[str]] = ("first", "second", "late", "full", "condemn", "sweep")
    weight: ClassVar[int] = 40

    def __init__(self) -> None:
        self.name, self.growing = "batches", ("attempt",)

    def perform(self, root: str, operation: str, promise: Promise) -> None:
        top = LocalStorage(root)
        storage, attempt = top.child("rollouts"), next_attempt(top)
        match operation:
            case "first" | "second":
                _commit(storage, attempt, _FIRST if operation == "first" else _SECOND, promise)
            case "late":
                _commit(storage, attempt - 1, _FIRST, promise)
            case "full":
                with suppress(StorageFull):
                    _commit(FailingStorage(storage, 3), attempt, _SECOND, promise)
            case "condemn":
                writer = PromisingWriter(storage, RunIdentity("run", 0, attempt), promise)
                for ref in writer.scan():
                    if ref.key == _FIRST:
                        promise("batch", f"{_FIRST.epoch} {_FIRST.batch}", "")
                        writer.condemn(ref)
            case "sweep":
                PromisingWriter(storage, RunIdentity("run", 0, attempt), promise).sweep()

    def inspect(self, root: str, promises: Promises) -> None:
        inspect_batches(PromisingWriter(_storage(root), RunIdentity("run", 0, 0), _no_promise), promises)

    def aim(self, root: str) -> int:
        return 0

    def recover(self, root: str, aim: int, promise: Promise) -> None:
        top = LocalStorage(root)
        storage, attempt = top.child("rollouts"), next_attempt(top)
        PromisingWriter(storage, RunIdentity("run", 0, attempt), promise).sweep()
        for key in (_FIRST, _SECOND):
            _commit(storage, attempt, key, promise)

    def inspect_end(self, root: str, aim: int, promises: Promises) -> None:
        storage = _storage(root)
        found = inspect_batches(PromisingWriter(storage, RunIdentity("run", 0, 0), _no_promise), {})
        must(found == {_FIRST, _SECOND}, f"committed are {found}")
        for key in found:
            must(sorted(os.listdir(f"{storage.uri}/{key}")) == _FILES, f"{key} holds foreign files")
        nothing_staged(storage)


def inspect_batches(writer: PromisingWriter, promises: Promises) -> set[BatchKey]:
    """What a scan shows is whole and the batch that an undisturbed run has; what was promised is shown."""
    found = set()
    for ref in writer.scan():
        _, samples, samples_hash = reference(ref.key)
        must(ref.samples_hash == samples_hash, f"{ref.key} is another batch")
        must(len(writer.load(ref)) == len(samples), f"{ref.key} has other samples")
        found.add(ref.key)
    for name, value in promised(promises, "batch"):
        key = BatchKey(*map(int, name.split()))
        must(key in found, f"{key} was committed and is gone")
        must(value == reference(key)[2], f"{key} was committed with other samples")
    return found


def _storage(root: str) -> LocalStorage:
    return LocalStorage(f"{root}/rollouts")


def _commit(storage: FileStorage, attempt: int, key: BatchKey, promise: Promise) -> None:
    spec, samples, _ = reference(key)
    writer = PromisingWriter(storage, RunIdentity("run", 0, attempt), promise)
    writer.commit(writer.stage(spec, samples, worker=f"rollout-{attempt}", seed=0))


def _no_promise(kind: str, name: str, value: str) -> None: ...
