"""Commits batches so that they are whole or absent: staged, read back, published by one rename.

``epoch_E/batch_B/`` below the storage's root holds ``samples.jsonl``, ``meta.json`` and ``SUCCESS``. Work in progress
lies under ``.staging/``, what was given up under ``.condemned/``; neither is ever read as a batch.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..committed import STAGING, SUCCESS, content_hash, move_aside, sweep_staging
from ..errors import DamagedBatch, ObjectExists, ObjectMissing, PluginError, RunMismatch, StorageError, VerlError
from ..protocols import FileStorage, Storage
from ..testing import crash
from ..types import BatchKey, BatchRef, BatchSpec, BuildContext, RunIdentity, Sample, StagedBatch
from .codec import BatchMeta, decode, decode_meta, encode, encode_meta, number

_log = logging.getLogger("verl.rollout")
SAMPLES, META = "samples.jsonl", "meta.json"
_REMEDY = "condemn the batch, so that it is made again"
_FILE = re.compile(r"epoch_(0|[1-9]\d*)/batch_(0|[1-9]\d*)/(.+)")
_LEFTOVER = re.compile(r"rollout_\d{8}_\d{6}_(\d+)_")


@dataclass
class AtomicConfig:
    """The writer has nothing to set."""


def build_atomic(config: AtomicConfig, context: BuildContext, storage: Storage) -> AtomicWriter:
    if not isinstance(storage, FileStorage):
        raise PluginError(
            "the writer 'atomic' publishes by renaming folders, which this storage cannot do",
            where=storage.uri,
            remedy="set storage.rollout_storage_uri to a path",
        )
    return AtomicWriter(storage, RunIdentity(context.run_id, context.branch, context.attempt))


class AtomicWriter:
    """A ``RolloutWriter`` on a file system. Calls of several threads and processes may overlap."""

    def __init__(self, storage: FileStorage, identity: RunIdentity, clock: Callable[[], float] = time.time) -> None:
        self._storage, self._identity, self._clock = storage, identity, clock

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        """Encode a batch, in memory. Raises ``RunMismatch`` when the samples are not those of the spec."""
        if tuple(dict.fromkeys(sample.row for sample in samples)) != tuple(dict.fromkeys(spec.rows)):
            raise RunMismatch("the samples are not those of the batch", where=str(spec.key))
        data = encode(spec, samples)
        meta = self._meta(spec, samples, data, worker, seed)
        return StagedBatch(_ref(meta), {SAMPLES: data, META: encode_meta(meta)}, tuple(map(_draw, samples)))

    def commit(self, staged: StagedBatch) -> BatchRef:
        """Write below ``.staging/``, read back, publish. Of a batch that is there already the ref is returned.

        Raises ``RunMismatch`` when that one is of another run or schedule, ``DamagedBatch`` when it is not whole.
        """
        key = staged.ref.key
        if self._storage.stat(f"{key}/{SUCCESS}"):
            return self._adopt(staged)
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
                return self._adopt(staged)
            raise
        return staged.ref

    def load(self, ref: BatchRef) -> list[Sample]:
        """Raises ``DamagedBatch`` unless the batch is whole and the one that the ref speaks of."""
        meta = self._read_meta(ref.key)
        if (meta.samples_hash, meta.policy_version) != (ref.samples_hash, ref.policy_version):
            raise DamagedBatch("it is not the batch of the journal", where=self._where(ref.key, META), remedy=_REMEDY)
        return self._read_samples(ref.key, ref.samples_hash)

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        """Committed batches in the order of their keys, without those that are known: one listing, and one record each.

        What is not whole is left out, and logged.
        """
        found = [match for stat in self._storage.list() if (match := _FILE.fullmatch(stat.path))]
        for key in sorted({BatchKey(int(m[1]), int(m[2])) for m in found if m[3] == SUCCESS}.difference(known)):
            try:
                meta = self._read_meta(key)
            except DamagedBatch as error:
                _log.warning("not a committed batch: %s", error)
            else:
                yield _ref(meta)

    def sweep(self) -> list[str]:
        """Remove what dead attempts left in staging, move aside batch folders without ``SUCCESS``; return their names.

        For the one controller, at its start.
        """
        swept = sweep_staging(self._storage, _LEFTOVER, self._identity.attempt)
        found = [match for stat in self._storage.list() if (match := _FILE.fullmatch(stat.path))]
        whole = {(match[1], match[2]) for match in found if match[3] == SUCCESS}
        for epoch, batch in dict.fromkeys((match[1], match[2]) for match in found):
            if (epoch, batch) not in whole:
                swept.append(self._move_aside(BatchKey(int(epoch), int(batch))))
        return swept

    def condemn(self, ref: BatchRef) -> str:
        """Move a damaged batch aside, so that its name is free; return where it is. For the one controller."""
        return self._move_aside(ref.key)

    # --- steps -------------------------------------------------------------------------------

    def _meta(self, spec: BatchSpec, samples: Sequence[Sample], data: bytes, worker: str, seed: int) -> BatchMeta:
        return BatchMeta(
            run_id=self._identity.run_id,
            branch=self._identity.branch,
            attempt=self._identity.attempt,
            epoch=spec.key.epoch,
            batch=spec.key.batch,
            policy_version=spec.policy_version,
            timestamp=self._clock(),
            worker_id=worker,
            seed=seed,
            token_count=sum(len(sample.response_ids) for sample in samples),
            sample_count=len(samples),
            reward_mean=number(float(np.mean([sample.reward for sample in samples]))),
            prompt_rows=list(spec.rows),
            samples_hash=content_hash(data),
            sizes={SAMPLES: len(data)},
        )

    def _write(self, folder: str, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            self._storage.write(f"{folder}/{name}", data)
            crash.point("commit.written")
        for name, data in files.items():
            if data and self._storage.get(f"{folder}/{name}") != data:
                raise DamagedBatch("it reads back differently from what was written", where=f"{folder}/{name}")
        crash.point("commit.verified")

    def _adopt(self, staged: StagedBatch) -> BatchRef:
        """The ref of the batch that is there, once it is known to be the one that was asked for."""
        key, where = staged.ref.key, self._where(staged.ref.key)
        found = _ref(self._read_meta(key))
        if (found.branch, found.policy_version, found.prompt_rows) != (
            staged.ref.branch,
            staged.ref.policy_version,
            staged.ref.prompt_rows,
        ):
            raise RunMismatch("another branch, policy version or other prompts are committed here", where=where)
        if tuple(map(_draw, self._read_samples(key, found.samples_hash))) != staged.draws:
            raise RunMismatch("the batch committed here was drawn with other seeds", where=where)
        return found

    def _read_meta(self, key: BatchKey) -> BatchMeta:
        where = self._where(key, META)
        try:
            if self._storage.stat(f"{key}/{SUCCESS}") is None:
                raise DamagedBatch("it has no SUCCESS: it was never committed", where=self._where(key))
            meta = decode_meta(self._storage.get(f"{key}/{META}"))
        except (ObjectMissing, ValueError) as error:
            raise DamagedBatch(f"the record is unreadable: {error}", where=where, remedy=_REMEDY) from error
        if meta.run_id != self._identity.run_id:
            raise RunMismatch(f"this batch belongs to run {meta.run_id}", where=where)
        if BatchKey(meta.epoch, meta.batch) != key:
            raise DamagedBatch(f"the record is of epoch {meta.epoch}, batch {meta.batch}", where=where, remedy=_REMEDY)
        return meta

    def _read_samples(self, key: BatchKey, samples_hash: str) -> list[Sample]:
        where = self._where(key, SAMPLES)
        try:
            data = self._storage.get(f"{key}/{SAMPLES}")
            _, samples = decode(data)
        except ObjectMissing as error:
            raise DamagedBatch("the samples are missing", where=where, remedy=_REMEDY) from error
        except DamagedBatch as error:
            raise DamagedBatch(error.what, where=f"{where}, {error.where}", remedy=_REMEDY) from error
        if content_hash(data) != samples_hash:
            raise DamagedBatch("the samples differ from their hash", where=where, remedy=_REMEDY)
        return samples

    def _move_aside(self, key: BatchKey) -> str:
        return move_aside(self._storage, str(key), f"epoch_{key.epoch}_batch_{key.batch}.{self._identity.attempt}")

    def _where(self, key: BatchKey, name: str = "") -> str:
        return f"{self._storage.uri}/{key}" + (f"/{name}" if name else "")


def _draw(sample: Sample) -> tuple[int, int, int]:
    return sample.row, sample.index, sample.seed


def _ref(meta: BatchMeta) -> BatchRef:
    return BatchRef(
        key=BatchKey(meta.epoch, meta.batch),
        branch=meta.branch,
        attempt=meta.attempt,
        policy_version=meta.policy_version,
        samples_hash=meta.samples_hash,
        sample_count=meta.sample_count,
        token_count=meta.token_count,
        reward_mean=float(meta.reward_mean),
        prompt_rows=tuple(meta.prompt_rows),
    )
