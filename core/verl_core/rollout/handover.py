"""Batches between workers that share a process: the same samples in memory while their commit is under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..apart import Apart, here
from ..errors import DamagedBatch, VerlError
from ..protocols import RolloutWriter
from ..types import BatchKey, BatchRef, BatchSpec, Sample, StagedBatch
from ..writes import Writes


class HandOver:
    """Commits behind the caller, on the writer thread, and keeps samples until ``drop``.

    The first to hand in a batch wins: a worker that was given up and comes late is told the ref of the other's. What
    turns out to be committed by an earlier attempt wins, too; if it is not the same to the byte, the queue is broken,
    since training may have run ahead on the other samples.
    ``durable=False`` (fault tolerance off) keeps batches in memory only.
    """

    def __init__(self, writer: RolloutWriter, writes: Writes, *, durable: bool = True, apart: Apart = here) -> None:
        self._writer, self._writes, self._durable, self._apart = writer, writes, durable, apart
        self._refs: dict[BatchKey, BatchRef] = {}  # of all that was handed in
        self._held: dict[BatchKey, list[Sample]] = {}
        self._lock = threading.Lock()

    def commit(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> BatchRef:
        """The ref at once; the batch is committed before anything that is handed to the queue later."""
        staged = self._writer.stage(spec, samples, worker=worker, seed=seed)
        with self._lock:
            if spec.key in self._refs:
                return self._refs[spec.key]
            self._refs[spec.key], self._held[spec.key] = staged.ref, list(samples)
        if self._durable:
            self._writes.submit(lambda: self._commit(staged))
        return staged.ref

    def _commit(self, staged: StagedBatch) -> None:
        found = self._apart(self._writer.commit, staged)
        if found.samples_hash != staged.ref.samples_hash:
            raise VerlError(
                f"attempt {found.attempt} committed other samples of this batch, where bits do not reproduce",
                where=str(found.key),
                remedy="start the run again: it goes on with those that are committed",
            )

    def load(self, ref: BatchRef) -> list[Sample]:
        """From memory when it is the very batch, else from storage, verified. Raises DamagedBatch."""
        with self._lock:
            if self._refs.get(ref.key) == ref and ref.key in self._held:
                return self._held[ref.key]
        return self._writer.load(ref)

    def damaged(self, refs: Sequence[BatchRef]) -> dict[BatchRef, DamagedBatch]:
        """Which of these cannot be read any more, and why."""
        found: dict[BatchRef, DamagedBatch] = {}
        for ref in refs:
            try:
                self.load(ref)
            except DamagedBatch as error:
                found[ref] = error
        return found

    def condemn(self, ref: BatchRef) -> None:
        """Forget a damaged batch and put it aside, so that it can be made again."""
        with self._lock:
            self._refs.pop(ref.key, None)
            self._held.pop(ref.key, None)
        self._writer.condemn(ref)

    def drop(self, keys: Sequence[BatchKey]) -> None:
        """Samples that training is done with; storage has them."""
        with self._lock:
            for key in keys:
                self._held.pop(key, None)
