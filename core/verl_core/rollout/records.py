"""The files of a batch, made and read: what they say is held against the run and against what was asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..committed import SUCCESS, content_hash
from ..errors import DamagedBatch, ObjectMissing, RunMismatch
from ..protocols import Storage
from ..types import BatchKey, BatchRef, BatchSpec, RunIdentity, Sample, StagedBatch
from .codec import BatchMeta, Trailer, UnknownFormat, decode, decode_meta, encode, encode_meta, number
from .listing import Found

_log = logging.getLogger("verl.rollout")
SAMPLES, META = "samples.jsonl", "meta.json"
REMEDY = "condemn the batch, so that it is made again"


@dataclass(frozen=True, slots=True)
class Records:
    """Batches of one run. A ``folder`` is a path below the storage's root that ends with a slash."""

    storage: Storage
    identity: RunIdentity
    clock: Callable[[], float] = time.time  # seconds since the epoch

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        """Encode a batch, in memory. Raises ``RunMismatch`` when the samples are not those of the spec."""
        if tuple(dict.fromkeys(sample.row for sample in samples)) != tuple(dict.fromkeys(spec.rows)):
            raise RunMismatch("the samples are not those of the batch", where=str(spec.key))
        return self.staged(spec, encode(spec, samples), samples, worker, seed)

    def staged(self, spec: BatchSpec, data: bytes, samples: Sequence[Sample], worker: str, seed: int) -> StagedBatch:
        """A batch ready for its commit; ``data`` are its ``samples`` as they are stored."""
        meta = BatchMeta(
            run_id=self.identity.run_id,
            branch=self.identity.branch,
            attempt=self.identity.attempt,
            epoch=spec.key.epoch,
            batch=spec.key.batch,
            policy_version=spec.policy_version,
            timestamp=self.clock(),
            worker_id=worker,
            seed=seed,
            token_count=sum(len(sample.response_ids) for sample in samples),
            sample_count=len(samples),
            reward_mean=number(float(np.mean([sample.reward for sample in samples]))),
            prompt_rows=list(spec.rows),
            samples_hash=content_hash(data),
            sizes={SAMPLES: len(data)},
        )
        return StagedBatch(ref_of(meta), {SAMPLES: data, META: encode_meta(meta)}, tuple(map(_draw, samples)))

    def load(self, folder: str, ref: BatchRef) -> list[Sample]:
        """Raises ``DamagedBatch`` unless the batch is whole and the one that the ref speaks of."""
        meta = self.committed(folder, ref.key)
        if (meta.samples_hash, meta.policy_version) != (ref.samples_hash, ref.policy_version):
            raise DamagedBatch("it is not the batch of the journal", where=self.where(folder, META), remedy=REMEDY)
        return self.samples(folder, ref.samples_hash)

    def adopt(self, folder: str, staged: StagedBatch) -> BatchRef:
        """The ref of the batch that is there, once it is known to be the one that was asked for."""
        found = ref_of(self.committed(folder, staged.ref.key))
        self.check(folder, found, staged)
        self.check_draws(folder, self.samples(folder, found.samples_hash), staged)
        return found

    def committed(self, folder: str, key: BatchKey) -> BatchMeta:
        """The record of a committed batch. Raises ``DamagedBatch``."""
        if self.storage.stat(f"{folder}{SUCCESS}") is None:
            raise DamagedBatch("it has no SUCCESS: it was never committed", where=self.where(folder))
        try:
            return self.meta(folder, key, self.storage.get(f"{folder}{META}"))
        except ObjectMissing as error:
            where = self.where(folder, META)
            raise DamagedBatch(f"the record is unreadable: {error}", where=where, remedy=REMEDY) from error

    def scan(self, seen: Found, known: Collection[BatchKey]) -> Iterator[BatchRef]:
        """The committed batches of a listing by their keys, without the known; what is damaged is logged."""
        for key in sorted(key for key in seen.committed if key not in known):
            try:
                meta = self.committed(f"{key}/{seen.committed[key]}", key)
            except DamagedBatch as error:
                _log.warning("not a committed batch: %s", error)
            else:
                yield ref_of(meta)

    def meta(self, folder: str, key: BatchKey, data: bytes) -> BatchMeta:
        """``meta.json`` as it must be for this run and batch."""
        where = self.where(folder, META)
        try:
            meta = decode_meta(data)
        except UnknownFormat as error:  # no damage: nothing may be made in its place
            raise RunMismatch(str(error), where=where, remedy="use the version of verl-core that wrote it") from error
        except ValueError as error:
            raise DamagedBatch(f"the record is unreadable: {error}", where=where, remedy=REMEDY) from error
        if meta.run_id != self.identity.run_id:
            raise RunMismatch(f"this batch belongs to run {meta.run_id}", where=where)
        if BatchKey(meta.epoch, meta.batch) != key:
            raise DamagedBatch(f"the record is of epoch {meta.epoch}, batch {meta.batch}", where=where, remedy=REMEDY)
        return meta

    def samples(self, folder: str, samples_hash: str) -> list[Sample]:
        """Raises ``DamagedBatch``, with the line, unless they are what the hash says."""
        where = self.where(folder, SAMPLES)
        try:
            data = self.storage.get(f"{folder}{SAMPLES}")
        except ObjectMissing as error:
            raise DamagedBatch("the samples are missing", where=where, remedy=REMEDY) from error
        _, samples = self.decoded(folder, data)
        if content_hash(data) != samples_hash:
            raise DamagedBatch("the samples differ from their hash", where=where, remedy=REMEDY)
        return samples

    def decoded(self, folder: str, data: bytes) -> tuple[Trailer, list[Sample]]:
        """``codec.decode``; its errors name the file."""
        try:
            return decode(data)
        except DamagedBatch as error:
            where = f"{self.where(folder, SAMPLES)}, {error.where}"
            raise DamagedBatch(error.what, where=where, remedy=REMEDY) from error

    def check(self, folder: str, found: BatchRef, staged: StagedBatch) -> None:
        """Raises ``RunMismatch`` when what is there was made for another branch, policy or prompts."""
        asked = staged.ref
        if (found.branch, found.policy_version, found.prompt_rows) != (
            asked.branch,
            asked.policy_version,
            asked.prompt_rows,
        ):
            what = "another branch, policy version or other prompts are committed here"
            raise RunMismatch(what, where=self.where(folder))

    def check_draws(self, folder: str, samples: Sequence[Sample], staged: StagedBatch) -> None:
        """Raises ``RunMismatch`` when what is there was drawn with other seeds."""
        if tuple(map(_draw, samples)) != staged.draws:
            raise RunMismatch("the batch committed here was drawn with other seeds", where=self.where(folder))

    def where(self, folder: str, name: str = "") -> str:
        return f"{self.storage.uri}/{folder}{name}".rstrip("/")


def _draw(sample: Sample) -> tuple[int, int, int]:
    return sample.row, sample.index, sample.seed


def ref_of(meta: BatchMeta) -> BatchRef:
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
