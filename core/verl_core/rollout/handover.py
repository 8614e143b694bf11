"""Batches between workers that share a process: the same samples in memory while their commit is under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..protocols import RolloutWriter
from ..types import BatchKey, BatchRef, BatchSpec, Sample
from ..writes import Writes


class HandOver:
    """Commits behind the caller, on the writer thread, and keeps samples until ``drop``.

    The first to hand in a batch wins: a worker that was given up and comes late is told the ref of the other's.
    ``durable=False`` (fault tolerance off) keeps batches in memory only.
    """

    def __init__(self, writer: RolloutWriter, writes: Writes, *, durable: bool = True) -> None:
        self._writer, self._writes, self._durable = writer, writes, durable
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
            self._writes.submit(lambda: self._writer.commit(staged))
        return staged.ref

    def load(self, ref: BatchRef) -> list[Sample]:
        """From memory when it is the very batch, else from storage, verified. Raises DamagedBatch."""
        with self._lock:
            if self._refs.get(ref.key) == ref and ref.key in self._held:
                return self._held[ref.key]
        return self._writer.load(ref)

    def drop(self, keys: Sequence[BatchKey]) -> None:
        """Samples that training is done with; storage has them."""
        with self._lock:
            for key in keys:
                self._held.pop(key, None)
