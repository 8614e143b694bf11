"""Notifications to people: one an incident, deduplicated and rate-limited; a dead sink never hurts training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from .errors import StorageError, VerlError
from .observers import Observers
from .protocols import AlertSink
from .types import Alert, Decision, Fault, Severity
from .writes import Writes

log = logging.getLogger("verl")
REPEAT_S = 300.0  # an alert with the same title is not sent again within this time


class Alerts:
    def __init__(
        self, sinks: Sequence[AlertSink], observers: Observers, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sinks, self._observers, self._clock = tuple(sinks), observers, clock
        self._sent: dict[str, float] = {}

    def decided(self, fault: Fault, decision: Decision, writes: Writes) -> None:
        """Tell what happened and what is done about it, once the decision is durable."""
        severe = decision.action in ("safe_mode", "abort")
        severity: Severity = "severe" if severe else "medium" if fault.kind == "worker_lost" else "light"
        title = f"{fault.kind} of {fault.scope}: {decision.action}"
        if severe:
            writes.barrier()
        self.send(Alert(severity, title, f"{fault.evidence}; {decision.reason}", fault.step))

    def storage(self, error: StorageError) -> None:
        """Storage does not take writes; they are tried again while training goes on."""
        self.send(Alert("medium", "storage is not writable", str(error), None))

    def waiting(self, error: StorageError) -> None:
        """A storage call has no answer yet: a mount or a server is stuck. Told by the thread that waits."""
        self.send(Alert("medium", "storage does not answer", str(error), None))

    def send(self, alert: Alert) -> None:
        now = self._clock()
        if now - self._sent.get(alert.title, float("-inf")) < REPEAT_S:
            return
        self._sent[alert.title] = now
        self._observers.alert_raised(alert)
        for sink in self._sinks:
            try:
                sink.send(alert)
            except (VerlError, OSError, ValueError) as error:
                log.warning("alert sink %s failed: %s", type(sink).__name__, error)
