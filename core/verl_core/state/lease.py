"""Who may write: the run's lock where a storage has one; elsewhere a lease, which its controller renews.

A lease only keeps people from starting a run twice. That two controllers never both write is the state log's doing:
creating its next object is the fence (see ``segments``).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from ..errors import ObjectMissing, StorageError
from ..protocols import Storage
from .claim import CONTROLLER, busy, lock_run, read_controller
from .journal import lockable

_log = logging.getLogger("verl.state")
LEASE_S, BEAT_S = 60.0, 15.0


def hold(
    storage: Storage,
    log_storage: Storage,
    log_path: str,
    *,
    take_over: bool = False,
    wall: Callable[[], float] = time.time,
) -> Callable[[], None]:
    """Keep others from starting the run; returns the release. Raises RunBusy when another controller is at work.

    Without locks: whose process died on this host is not waited for, nor is with ``take_over`` anybody.
    """
    if lockable(storage):
        return lock_run(storage)
    if lockable(log_storage):
        return lock_run(log_storage, f"{log_path}.lock", run=storage)
    if not take_over:
        _refuse_if_held(storage, wall)
    return lambda: None


def _refuse_if_held(storage: Storage, wall: Callable[[], float]) -> None:
    holder = read_controller(storage)
    if holder is None:
        return
    if holder.host == socket.gethostname():
        if holder.alive:
            raise busy(storage, "stop that one first, or use another --run-dir")
        return
    stat = storage.stat(CONTROLLER)
    left_s = LEASE_S - (wall() - stat.mtime) if stat is not None else 0.0
    if left_s > 0:
        raise busy(storage, f"stop that one first; if it is dead, wait {left_s:.0f} s, or --take-over")


class Heartbeat:
    """Renews the lease on a thread of its own, until it is stopped or finds that another controller holds the run."""

    def __init__(self, storage: Storage, facts: bytes, every_s: float = BEAT_S) -> None:
        """``facts``: what the controller wrote about itself."""
        self._storage, self._facts, self._every_s = storage, facts, every_s
        self._stopped = threading.Event()
        threading.Thread(target=self._work, name="verl-heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _work(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                if self._storage.get(CONTROLLER) != self._facts:
                    return
                self._storage.put(CONTROLLER, self._facts)
            except ObjectMissing:
                return
            except StorageError as error:
                _log.warning("the lease was not renewed: %s", error)
