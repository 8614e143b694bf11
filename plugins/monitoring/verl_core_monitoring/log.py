"""Sinks ``log``: alerts by their severity, metrics as one debug line a step, both to the logger ``verl``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import AlertSink, MetricSink
from verl_core.types import Alert, BuildContext

logger = logging.getLogger("verl")

LEVELS = {"light": logging.WARNING, "medium": logging.ERROR, "severe": logging.CRITICAL}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """No keys: levels and handlers are set on the logger ``verl``."""


class LogAlertSink:
    def send(self, alert: Alert) -> None:
        place = "" if alert.step is None else f"step {alert.step}: "
        logger.log(LEVELS[alert.severity], "%s%s: %s", place, alert.title, alert.text)


class LogMetricSink:
    def emit(self, step: int, values: Mapping[str, float]) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("step %d: %s", step, " ".join(f"{name}={value:.6g}" for name, value in values.items()))


def build_alert_sink(config: LogConfig, context: BuildContext) -> LogAlertSink:
    return LogAlertSink()


def build_metric_sink(config: LogConfig, context: BuildContext) -> LogMetricSink:
    return LogMetricSink()


@hookimpl
def register_alert_sinks(register: Register[AlertSink]) -> None:
    register("log", LogConfig, build_alert_sink)


@hookimpl
def register_metric_sinks(register: Register[MetricSink]) -> None:
    register("log", LogConfig, build_metric_sink)
