"""Commits batches so that they are whole or absent: staged, read back, published by one rename.

``epoch_E/batch_B/`` below the storage's root holds ``samples.jsonl``, ``meta.json`` and ``SUCCESS``. Work in progress
lies under ``.staging/``, what was given up under ``.condemned/``; neither is ever read as a batch. On a store that
cannot rename folders, ``objects`` does the same by creating each object once.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..committed import STAGING, SUCCESS, move_aside, sweep_staging
from ..errors import DamagedBatch, ObjectExists, ObjectMissing, StorageError, VerlError
from ..protocols import FileStorage, Portable, RolloutWriter, Storage
from ..testing import crash
from ..types import BatchKey, BatchRef, BatchSpec, BuildContext, RunIdentity, Sample, StagedBatch
from .listing import Found, find
from .objects import ObjectWriter
from .records import Records

_log = logging.getLogger("verl.rollout")
_LEFTOVER = re.compile(r"rollout_\d{8}_\d{6}_(\d+)_")


@dataclass
class AtomicConfig:
    """The writer has nothing to set."""


def build_atomic(config: AtomicConfig, context: BuildContext, storage: Storage) -> RolloutWriter:
    """By rename where the storage can publish folders, else object by object."""
    identity = RunIdentity(context.run_id, context.branch, context.attempt)
    if isinstance(storage, FileStorage):
        return AtomicWriter(storage, identity)
    return ObjectWriter(storage, identity, seed=context.seed)


class AtomicWriter:
    """A ``RolloutWriter`` on a file system. Calls of several threads and processes may overlap."""

    def __init__(self, storage: FileStorage, identity: RunIdentity, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._identity, self._clock = storage, identity, clock
        self._records = Records(storage, identity, clock)
        self._seen: Found | None = None  # by the newest scan, until it is swept

    def portable(self) -> bool:
        return isinstance(self._storage, Portable) and self._storage.portable()

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        """Encode a batch, in memory. Raises ``RunMismatch`` when the samples are not those of the spec."""
        return self._records.stage(spec, samples, worker=worker, seed=seed)

    def commit(self, staged: StagedBatch) -> BatchRef:
        """Write below ``.staging/``, read back, publish. Of a batch that is there already the ref is returned.

        Raises ``RunMismatch`` when that one is of another run or schedule, ``DamagedBatch`` when it is not whole.
        """
        key = staged.ref.key
        if self._storage.stat(f"{key}/{SUCCESS}"):
            self._storage.settle(f"epoch_{key.epoch}")  # whoever published it may have died before its own sync
            return self._records.adopt(f"{key}/", staged)
        moment = time.strftime("%Y%m%d_%H%M%S", time.gmtime(self._clock()))
        # the random end keeps a worker that was thought dead apart from its replacement
        name = f"rollout_{moment}_{staged.ref.attempt}_e{key.epoch}_b{key.batch}_{secrets.token_hex(4)}"
        folder = f"{STAGING}/{name}"
        try:
            self._write(folder, {**staged.files, SUCCESS: b""})
            self._storage.publish(folder, str(key))
        except VerlError as error:
            with suppress(StorageError):
                self._storage.delete(folder)
            if isinstance(error, ObjectExists):
                return self._records.adopt(f"{key}/", staged)
            raise
        return staged.ref

    def load(self, ref: BatchRef) -> list[Sample]:
        """Raises ``DamagedBatch`` unless the batch is whole and the one that the ref speaks of."""
        return self._records.load(f"{ref.key}/", ref)

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        """Committed batches in the order of their keys, without those that are known: one listing, and one record each.

        What is not whole is left out, and logged.
        """
        self._seen = find(self._storage.list())
        return self._records.scan(self._seen, known)

    def sweep(self) -> list[str]:
        """Remove what dead attempts left in staging, move aside batch folders without ``SUCCESS``; return their names.

        For the one controller, at its start. The listing is that of a scan before it, if there was one.
        """
        swept = sweep_staging(self._storage, _LEFTOVER, self._identity.attempt)
        seen, self._seen = self._seen or find(self._storage.list()), None
        for epoch in sorted({key.epoch for key in seen.committed}):
            self._storage.settle(f"epoch_{epoch}")  # whoever published a batch may have died before its own sync
        for key in seen.begun:
            if any(self._storage.list(str(key))) and not self._storage.stat(f"{key}/{SUCCESS}"):
                swept.append(self._move_aside(key))
        return swept

    def condemn(self, ref: BatchRef) -> str:
        """Move a damaged batch aside, so that its name is free; return where it is. For the one controller."""
        try:
            return self._move_aside(ref.key)
        except ObjectMissing:  # done before
            return str(ref.key)

    def _write(self, folder: str, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            self._storage.write(f"{folder}/{name}", data)
            crash.point("commit.written")
        for name, data in files.items():
            if data and self._storage.get(f"{folder}/{name}") != data:
                raise DamagedBatch("it reads back differently from what was written", where=f"{folder}/{name}")
        crash.point("commit.verified")

    def _move_aside(self, key: BatchKey) -> str:
        return move_aside(self._storage, str(key), f"epoch_{key.epoch}_batch_{key.batch}.{self._identity.attempt}")
