"""Checkpoints on a disk of this host beside the run's storage: durable here at once, there as soon as it takes them.

While the storage is down, training goes on with what lies here; the newest one is carried over when the storage is
back, by this attempt or by the next start on this host. Of two that wait only the newer one goes: a slow storage holds
nobody up. A checkpoint counts as committed, and is in the state log, when the run's storage has it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import DamagedCheckpoint, StorageError
from ..protocols import Checkpointer, CheckpointReader
from ..testing import crash
from ..types import CheckpointRef, CheckpointState
from ..writes import TRANSIENT
from .retention import to_delete

RETRY_S = 5.0
_log = logging.getLogger("verl.checkpoint")


class LocalCopies:
    """``save`` is called by the writer thread; a thread of its own carries what was saved to ``main``."""

    def __init__(
        self,
        local: Checkpointer,
        main: Checkpointer,
        *,
        keep: int,
        limit_s: float,
        wanted: Callable[[CheckpointRef], bool] = lambda ref: True,
        claim: Callable[[], None] = lambda: None,
        on_wait: Callable[[StorageError], None] = lambda error: None,
        retry_s: float | None = None,
    ) -> None:
        """``keep``: newest ones that stay here. ``limit_s``: how long ``main`` may be down. ``wanted``: whether one
        that lies here is of the run as it went on. ``claim``: comes before anything is brought to ``main``."""
        self._claim = claim
        self._local, self._main, self._keep, self._wanted = local, main, keep, wanted
        self._limit_s, self._on_wait, self._retry_s = limit_s, on_wait, RETRY_S if retry_s is None else retry_s
        self._changed = threading.Condition()
        self._waiting: CheckpointRef | None = None
        self._carried: CheckpointRef | None = None  # at this moment
        self._down_since: float | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._arrived: Callable[[CheckpointRef], None] = lambda ref: None

    def save(self, state: CheckpointState, arrived: Callable[[CheckpointRef], None]) -> None:
        """Durable here on return; ``arrived`` is called when the run's storage has it. Where this disk does not take
        it, it goes to the run's storage at once. Raises what that storage raises."""
        try:
            ref = self._local.save(state)
        except StorageError as error:
            self._on_wait(error)
            arrived(self._main.save(state))
            return
        crash.point("copy.local")
        self.bring(ref, arrived)
        self._trim()

    def bring(self, ref: CheckpointRef, arrived: Callable[[CheckpointRef], None]) -> None:
        """Carry one that lies here to the run's storage, behind the caller; see ``save``."""
        with self._changed:
            self._arrived = arrived
            if ref != self._carried:
                self._waiting = ref
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="verl-copies", daemon=True)
            self._thread.start()

    def waits_for(self, error: StorageError) -> None:
        """Tell that the run's storage is down."""
        self._on_wait(error)

    def check(self) -> None:
        """Raise the error that ended the carrying: the storage was down for too long, or holds something else."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for what is on its way, unless the storage is down: then the next start on this host carries it."""
        with self._changed:
            while (self._waiting or self._carried) and self._down_since is None and self._error is None:
                self._changed.wait(0.2)
            self._closing = True
            self._changed.notify_all()
            left = self._waiting or self._carried
        if left is not None:
            _log.warning("%s lies on this host alone; a start on this host carries it over", left.name)

    # --- reading -----------------------------------------------------------------------------

    def carry_over(self) -> None:
        """At a start: bring the newest good one that lies here to the run's storage, where that has none as new."""
        try:
            found = self.newest(max((ref.step for ref in self._main.list()), default=-1))
            if found is not None and self._brought(found[0]):
                _log.warning("%s was on this host alone: it is carried over", found[0].name)
        except TRANSIENT as error:
            self._on_wait(error)

    def newest(self, above: int) -> tuple[CheckpointRef, CheckpointReader] | None:
        """The newest good one here of a step above."""
        for ref in self._local.list():
            if ref.step > above and self._wanted(ref):
                try:
                    return ref, self._local.open(ref)
                except DamagedCheckpoint as error:
                    _log.warning("moved to %s: %s", self._local.condemn(ref), error)
        return None

    def repair(self, ref: CheckpointRef) -> bool:
        """Put a good copy from here in the place of a damaged checkpoint, whose name is free."""
        return ref in self._local.list() and self._brought(ref)

    def drop(self, step: int) -> None:
        """Remove those of ``step`` and later: the run goes on from another policy."""
        for ref in self._local.list():
            if ref.step >= step:
                self._local.delete(ref)

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        while (ref := self._take()) is not None:
            try:
                if self._brought(ref):
                    self._arrived(ref)
            except TRANSIENT as error:
                if not self._stays_down(ref, error):
                    return
            except BaseException as error:  # noqa: BLE001 - border: handed to the controller by check()
                self._end(error)
                return
            else:
                self._set(None)
                self._down_since = None

    def _take(self) -> CheckpointRef | None:
        with self._changed:
            while self._waiting is None and not self._closing:
                self._changed.wait()
            if self._closing:
                return None
            self._carried, self._waiting = self._waiting, None
            return self._carried

    def _stays_down(self, ref: CheckpointRef, error: StorageError) -> bool:
        """Wait for the next try; False when the storage was down for too long."""
        now = time.monotonic()
        self._down_since = self._down_since or now
        if now - self._down_since > self._limit_s:
            self._end(error)
            return False
        self._on_wait(error)
        with self._changed:
            self._changed.wait_for(lambda: self._closing, self._retry_s)
            self._set(self._waiting or ref)
        return True

    def _set(self, waiting: CheckpointRef | None) -> None:
        with self._changed:
            self._carried = None
            self._waiting = self._waiting or waiting
            self._changed.notify_all()

    def _end(self, error: BaseException) -> None:
        self._error = error
        self._set(None)

    # --- both --------------------------------------------------------------------------------

    def _brought(self, ref: CheckpointRef) -> bool:
        """Whether it is in the run's storage now; what is damaged here is moved aside."""
        try:
            files = self._local.contents(ref)
        except DamagedCheckpoint as error:
            _log.warning("moved to %s: %s", self._local.condemn(ref), error)
            return False
        self._claim()
        self._main.adopt(ref, files)
        return True

    def _trim(self) -> None:
        with self._changed:
            busy = [ref.step for ref in (self._waiting, self._carried) if ref is not None]
        for ref in to_delete(self._local.list(), self._keep, protected=busy):
            self._local.delete(ref)
