"""Alerts: one an incident, after its decision is durable, and no sink can hurt the run."""

from __future__ import annotations

import threading
import time

import pytest
from verl_core.alerts import REPEAT_S, Alerts
from verl_core.errors import StorageFull, VerlError
from verl_core.observers import Observers
from verl_core.types import Action, Alert, Decision, Fault
from verl_core.writes import WriteQueue

FAULT = Fault("train_oom", "train", "step 3", "no room", 3)


class Sink:
    """Keeps what it is sent; raises ``error`` each time when there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[Alert] = []
        self.error = error

    def send(self, alert: Alert) -> None:
        self.sent.append(alert)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("action", ["safe_mode", "abort"])
def test_a_person_is_told_only_after_the_decision_is_durable(action: Action) -> None:
    durable, told = list[bool](), list[bool]()
    writes = WriteQueue(patience_s=1)

    class Looking(Sink):
        def send(self, alert: Alert) -> None:
            told.append(bool(durable))

    def slowly() -> None:
        time.sleep(0.1)
        durable.append(True)

    writes.submit(slowly)
    Alerts([Looking()], Observers()).decided(FAULT, Decision(action, "spent"), writes)
    writes.close()
    assert told == [True]


def test_a_retry_does_not_wait_for_the_disk() -> None:
    writes, gate, sink = WriteQueue(patience_s=1), threading.Event(), Sink()
    writes.submit(gate.wait)
    Alerts([sink], Observers()).decided(FAULT, Decision("retry", "once"), writes)
    assert [alert.severity for alert in sink.sent] == ["light"]
    gate.set()
    writes.close()


def test_the_same_alert_is_sent_again_only_after_a_while() -> None:
    now, sink = [0.0], Sink()
    alerts = Alerts([sink], Observers(), clock=lambda: now[0])
    for at in (0.0, 1.0, REPEAT_S - 1, REPEAT_S, REPEAT_S + 1):
        now[0] = at
        alerts.storage(StorageFull("no space left"))
    assert len(sink.sent) == 2


@pytest.mark.parametrize("error", [VerlError("gone"), ConnectionError("refused"), ValueError("no url")])
def test_a_sink_that_fails_hurts_neither_the_run_nor_the_other_sinks(error: Exception) -> None:
    bad, good = Sink(error), Sink()
    Alerts([bad, good], Observers()).send(Alert("light", "title", "text", 1))
    assert len(bad.sent) == len(good.sent) == 1
