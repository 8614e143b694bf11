"""Commits batches on a store that cannot rename: each object is created only if absent, ``SUCCESS`` last.

The winner of a batch is whoever created its ``samples.jsonl``. Whoever finds one there finishes the commit with it, so
that two workers can never mix their data, and a call that was given up but lands later changes nothing. A batch is
encoded in memory, so there is nothing to stage. Nothing that may have been read is ever replaced or deleted: a damaged
batch is marked ``CONDEMNED``, and ``again_1/`` below its folder stands in for it.

Where the store ignores create-if-absent, each attempt has a folder of its own (``attempt_A/``), and only the run's one
controller commits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from ..committed import CONDEMNED_MARK, SUCCESS, create
from ..errors import DamagedBatch, ObjectMissing, RunMismatch
from ..protocols import Storage
from ..testing import crash
from ..types import BatchKey, BatchRef, BatchSpec, RunIdentity, Sample, StagedBatch
from .beside import beside
from .codec import decode_meta
from .listing import Found, find, free, standing, whole
from .records import META, REMEDY, SAMPLES, Records, ref_of

_log = logging.getLogger("verl.rollout")
NOBODY = ""  # the worker of a batch that another finished: its name died with it


class ObjectWriter:
    """A ``RolloutWriter`` on any storage. Calls of several threads and processes may overlap."""

    def __init__(
        self,
        storage: Storage,
        identity: RunIdentity,
        clock: Callable[[], float] = time.time,
        *,
        seed: int = 0,
        beside: Callable[[Callable[[], bytes]], Callable[[], bytes]] = beside,
    ) -> None:
        """``seed`` is the run's, for commits that are finished without their worker; ``beside`` begins a read."""
        self._storage, self._identity, self._seed, self._beside = storage, identity, seed, beside
        self._records = Records(storage, identity, clock)
        self._seen: Found | None = None  # by the newest scan, until it is swept

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        """Encode a batch, in memory. Raises ``RunMismatch`` when the samples are not those of the spec."""
        return self._records.stage(spec, samples, worker=worker, seed=seed)

    def commit(self, staged: StagedBatch) -> BatchRef:
        """Create what is not there, read it back, then ``SUCCESS``; returns the ref of the batch that is there then.

        May be called again after any error. Raises ``RunMismatch`` when what is there is of another run or schedule,
        ``DamagedBatch`` when it is not whole.
        """
        key, names, base = staged.ref.key, list[str](), ""
        if not self._conditional:
            names, base = self._names(key), f"attempt_{self._identity.attempt}/"
            there = standing(names)
            if there is not None:
                return self._records.adopt(f"{key}/{there}", staged)
        while True:
            folder = f"{key}/{free(names, base)}"
            try:
                ref, alone = self._commit_in(folder, staged)
                if alone or not self._is_condemned(folder):
                    self._create(f"{folder}{SUCCESS}", b"")
                    return ref
            except (DamagedBatch, RunMismatch):
                if not self._is_condemned(folder):
                    raise
            names = self._names(key)

    def load(self, ref: BatchRef) -> list[Sample]:
        """Raises ``DamagedBatch`` unless the batch is whole and the one that the ref speaks of.

        Read where batches usually are; with anything wrong there, in the folders that may stand in for it.
        """
        try:
            return self._records.load(f"{ref.key}/", ref)
        except DamagedBatch as error:
            wrong = error
        for folder in whole(self._names(ref.key)):
            try:
                return self._records.load(f"{ref.key}/{folder}", ref)
            except DamagedBatch as error:
                wrong = error
        raise wrong

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        """Committed batches in the order of their keys, without those that are known: one listing, and one record each.

        What is not whole is left out, and logged.
        """
        self._seen = find(self._storage.list())
        return self._records.scan(self._seen, known)

    def sweep(self) -> list[str]:
        """Finish commits that dead attempts left half-made, condemn what cannot be finished; return their folders.

        For the one controller, at its start. The listing is that of a scan before it, if there was one.
        """
        seen, self._seen = self._seen or find(self._storage.list()), None
        if not self._conditional:
            return []  # each attempt has its own folders: what was left half-made is in nobody's way
        swept = []
        for key, names in seen.begun.items():
            folder = free(names)
            if {f"{folder}{SAMPLES}", f"{folder}{META}"} & set(names):
                swept.append(self._settle(key, f"{key}/{folder}"))
        return swept

    def condemn(self, ref: BatchRef) -> str:
        """Mark a damaged batch, so that it can be made again; return its folder. For the one controller."""
        names = self._names(ref.key)
        folder = standing(names)
        if folder is None:
            folder = free(names, "" if self._conditional else f"attempt_{ref.attempt}/")
            if not any(name.startswith(folder) for name in names):
                return str(ref.key)  # done before, and not made again yet
        return self._mark(f"{ref.key}/{folder}")

    # --- steps -------------------------------------------------------------------------------

    @cached_property
    def _conditional(self) -> bool:
        return self._storage.capabilities().conditional_put

    def _commit_in(self, folder: str, staged: StagedBatch) -> tuple[BatchRef, bool]:
        """Everything but ``SUCCESS``; the ref of what is there then, and whether all of it is ours."""
        samples = self._create(f"{folder}{SAMPLES}", staged.files[SAMPLES])
        crash.point("commit.created")
        read = None if samples is not None else self._beside(lambda: self._storage.get(f"{folder}{SAMPLES}"))
        made = staged if samples is None else self._made_of(folder, samples, staged)
        meta = self._create(f"{folder}{META}", made.files[META])
        crash.point("commit.created")
        ref = made.ref
        if meta is not None:
            ref = ref_of(self._records.meta(folder, ref.key, meta))
            self._records.check(folder, ref, staged)
            if ref.samples_hash != made.ref.samples_hash:
                raise self._damaged("the record is of other samples", folder, META)
        elif self._storage.get(f"{folder}{META}") != made.files[META]:
            raise self._damaged("it reads back differently from what was written", folder, META)
        if read is not None and read() != made.files[SAMPLES]:
            raise self._damaged("it reads back differently from what was written", folder, SAMPLES)
        crash.point("commit.verified")
        return ref, samples is None and meta is None

    def _made_of(self, folder: str, data: bytes, staged: StagedBatch) -> StagedBatch:
        """The batch as another worker made it, once it is known to be the one that was asked for."""
        ref = staged.ref
        trailer, samples = self._records.decoded(folder, data)
        if trailer.key != ref.key:
            raise self._damaged(f"these are samples of {trailer.key}", folder, SAMPLES)
        self._records.check(folder, replace(ref, policy_version=trailer.policy_version), staged)
        self._records.check_draws(folder, samples, staged)
        spec = BatchSpec(ref.key, ref.policy_version, ref.prompt_rows)
        return self._records.staged(spec, data, samples, NOBODY, decode_meta(staged.files[META]).seed)

    def _settle(self, key: BatchKey, folder: str) -> str:
        """Finish a commit from its samples, or condemn it; returns the folder."""
        try:
            data = self._storage.get(f"{folder}{SAMPLES}")
            trailer, samples = self._records.decoded(folder, data)
            if trailer.key != key:
                raise self._damaged(f"these are samples of {trailer.key}", folder, SAMPLES)
            spec = BatchSpec(key, trailer.policy_version, tuple(dict.fromkeys(sample.row for sample in samples)))
            self._commit_in(folder, self._records.staged(spec, data, samples, NOBODY, self._seed))
            self._create(f"{folder}{SUCCESS}", b"")
        except (ObjectMissing, DamagedBatch) as error:
            _log.warning("a commit that was cut short cannot be finished: %s", error)
            return self._mark(folder)
        return folder.rstrip("/")

    def _is_condemned(self, folder: str) -> bool:
        return self._storage.stat(f"{folder}{CONDEMNED_MARK}") is not None

    def _damaged(self, what: str, folder: str, name: str) -> DamagedBatch:
        return DamagedBatch(what, where=self._records.where(folder, name), remedy=REMEDY)

    def _mark(self, folder: str) -> str:
        self._create(f"{folder}{CONDEMNED_MARK}", b"%d\n" % self._identity.attempt)
        crash.point("condemn.marked")
        return folder.rstrip("/")

    def _names(self, key: BatchKey) -> list[str]:
        return [stat.path.removeprefix(f"{key}/") for stat in self._storage.list(str(key))]

    def _create(self, path: str, data: bytes) -> bytes | None:
        return create(self._storage, path, data, conditional=self._conditional)
