"""Batches between workers that share a process: the same samples in memory while their commit is under way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..protocols import RolloutWriter
from ..types import BatchKey, BatchRef, BatchSpec, Sample
from ..writes import WriteQueue


class HandOver:
    """Commits behind the caller, on the writer thread, and keeps samples until ``drop``.

    ``durable=False`` (fault tolerance off) keeps batches in memory only.
    """

    def __init__(self, writer: RolloutWriter, writes: WriteQueue, *, durable: bool = True) -> None:
        self._writer, self._writes, self._durable = writer, writes, durable
        self._held: dict[BatchKey, tuple[str, list[Sample]]] = {}
        self._lock = threading.Lock()

    def commit(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> BatchRef:
        """The ref at once; the batch is committed before anything that is handed to the queue later."""
        staged = self._writer.stage(spec, samples, worker=worker, seed=seed)
        with self._lock:
            self._held[spec.key] = (staged.ref.samples_hash, list(samples))
        if self._durable:
            self._writes.submit(lambda: self._writer.commit(staged))
        return staged.ref

    def load(self, ref: BatchRef) -> list[Sample]:
        """From memory when it is the very batch, else from storage, verified. Raises DamagedBatch."""
        with self._lock:
            found = self._held.get(ref.key)
        if found is not None and found[0] == ref.samples_hash:
            return found[1]
        return self._writer.load(ref)

    def drop(self, keys: Sequence[BatchKey]) -> None:
        with self._lock:
            for key in keys:
                self._held.pop(key, None)
