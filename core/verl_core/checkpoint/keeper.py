"""Which checkpoint a run starts from, when one is saved, and which go: the run's side of the checkpointer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..apart import Apart, here
from ..errors import DamagedCheckpoint, InputError, RunMismatch, StorageError
from ..protocols import Checkpointer, CheckpointReader
from ..types import CheckpointRef, CheckpointState
from ..writes import DOWN, Writes
from .copies import LocalCopies
from .retention import to_delete


@dataclass(frozen=True, slots=True)
class Saved:
    """A committed checkpoint, and those that the retention policy gives up for it: never itself; delete them only
    after it is journalled."""

    ref: CheckpointRef
    expired: Sequence[CheckpointRef]


class Keeper:
    """Saves behind training, on the writer thread. What it did comes out of ``news``, to be journalled."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        writes: Writes,
        keep: int,
        copies: LocalCopies | None = None,
        apart: Apart = here,
    ) -> None:
        """``copies``: where saves go first, on this host. ``apart``: how the writer thread calls the checkpointer."""
        self._apart = apart
        self._checkpointer, self._writes, self._keep, self._copies = checkpointer, writes, keep, copies
        self._news: queue.SimpleQueue[Saved] = queue.SimpleQueue()
        self._here_alone: CheckpointRef | None = None
        self._room = threading.Semaphore(2)  # copies of the state that wait in memory

    def newest_good(
        self, known: Mapping[int, CheckpointRef], condemn: Callable[[CheckpointRef, str], None]
    ) -> tuple[CheckpointRef, CheckpointReader] | None:
        """The newest committed checkpoint whose every hash is right. Damaged ones are handed to
        ``condemn``, then moved aside. One that lies on this host alone counts, too, and is brought to the run's
        storage, which may be down. Raises its error when there is none here and ``known`` tells that there is one."""
        refs, error = self._listed()
        if self._copies is not None and (found := self._copies.newest(refs[0].step if refs else -1)):
            self._here_alone = found[0]
            self._copies.bring(found[0], self._committed)
            return found
        if error is not None and known:
            raise error
        for ref in refs:
            wanted = known.get(ref.step, ref)
            try:
                return ref, self._checkpointer.open(wanted)
            except DamagedCheckpoint as error:
                self._condemn(ref, str(error), condemn)
            if self._copies is not None and self._copies.repair(wanted):
                return wanted, self._checkpointer.open(wanted)
        return None

    def _listed(self) -> tuple[Sequence[CheckpointRef], StorageError | None]:
        """What the run's storage has, or why it does not answer, where copies on this host can stand in for it."""
        try:
            return self._checkpointer.list(), None
        except DOWN as error:
            if self._copies is None:
                raise
            self._copies.waits_for(error)
            return (), error

    def here_alone(self, ref: CheckpointRef) -> bool:
        """Whether the run started from a checkpoint that its storage has not: ``news`` will tell when it has."""
        return ref == self._here_alone

    def carry_over(self) -> None:
        """At a start: what an earlier one left on this host alone goes to the run's storage."""
        if self._copies is not None:
            self._copies.carry_over()

    def supersede(self, step: int, condemn: Callable[[CheckpointRef, str], None]) -> None:
        """Put aside what was saved at ``step`` or later: the run goes on from another policy."""
        for ref in self._checkpointer.list():
            if ref.step >= step:
                self._condemn(ref, f"superseded by a replay of step {step} that differs", condemn)
        if self._copies is not None:
            self._copies.drop(step)

    def _condemn(self, ref: CheckpointRef, reason: str, condemn: Callable[[CheckpointRef, str], None]) -> None:
        condemn(ref, reason)
        self._writes.barrier()  # journalled before it is moved
        self._checkpointer.condemn(ref)

    def named(self, name: str, run_prefix: str) -> tuple[CheckpointRef, CheckpointReader]:
        """The checkpoint that the user named: a step, ``step_000010``, or its path. Raises when it is damaged."""
        base = name.rstrip("/").rsplit("/", 1)[-1]
        base = f"step_{int(base):06d}" if base.isdigit() else base
        if "/" in name and not name.rstrip("/").removeprefix("file://").startswith(run_prefix.removeprefix("file://")):
            raise RunMismatch(
                "the checkpoint is not one of this run", where=name, remedy=f"name one below {run_prefix}"
            )
        for ref in self._checkpointer.list():
            if ref.name == base:
                return ref, self._checkpointer.open(ref)
        there = ", ".join(ref.name for ref in self._checkpointer.list()) or "none"
        raise InputError(f"no committed checkpoint {name!r}", where=run_prefix, remedy=f"there are: {there}")

    def save(self, state: CheckpointState) -> None:
        """Hand a copy of the state to the writer thread; at most two wait there."""
        while not self._room.acquire(timeout=0.2):
            self._writes.check()

        def write() -> None:
            if self._copies is None:
                self._committed(self._apart(self._checkpointer.save, state))
            else:
                self._copies.save(state, self._committed)
            self._room.release()

        self._writes.submit(write)

    def _committed(self, ref: CheckpointRef) -> None:
        self._news.put(Saved(ref, to_delete(self._apart(self._checkpointer.list), self._keep, protected=(ref.step,))))

    def news(self) -> list[Saved]:
        """What was committed since the last call. Raises the error that keeps saves from the run's storage."""
        if self._copies is not None:
            self._copies.check()
        found: list[Saved] = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def close(self) -> None:
        """Wait for saves that are on their way. May be called before the last ``news``."""
        if self._copies is not None:
            self._writes.barrier()
            self._copies.close()

    def delete(self, refs: Sequence[CheckpointRef]) -> None:
        for ref in refs:
            self._writes.submit(lambda ref=ref: self._apart(self._checkpointer.delete, ref))  # type: ignore[misc]
