from __future__ import annotations

import logging

import pytest
from verl_core.types import Alert, Severity
from verl_core_monitoring.log import LogAlertSink, LogMetricSink


@pytest.mark.parametrize(
    ("severity", "level"), [("light", logging.WARNING), ("medium", logging.ERROR), ("severe", logging.CRITICAL)]
)
def test_an_alert_is_one_record_at_the_level_of_its_severity(
    caplog: pytest.LogCaptureFixture, severity: Severity, level: int
) -> None:
    with caplog.at_level(logging.DEBUG, logger="verl"):
        LogAlertSink().send(Alert(severity, "worker lost", "100% of rollout-1; rescheduled", 7))
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        ("verl", level, "step 7: worker lost: 100% of rollout-1; rescheduled")
    ]


def test_metrics_are_one_debug_line_a_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="verl"):
        LogMetricSink().emit(4, {"loss": 0.125, "tokens": 640.0})
    assert caplog.messages == ["step 4: loss=0.125 tokens=640"]


def test_metrics_cost_no_line_when_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="verl"):
        LogMetricSink().emit(4, {"loss": 0.125})
    assert caplog.messages == []
