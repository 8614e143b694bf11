"""What every alert sink and metric sink must do: bounded in time, any content, no error that would reach the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from ...errors import VerlError
from ...protocols import AlertSink, MetricSink
from ...types import Alert

GUARDED = (VerlError, OSError, ValueError)  # what a run survives when a sink raises it

ALERTS = {
    "light": Alert("light", "rollout_timeout of batch epoch_0/batch_3: reschedule", "worker rollout-1 is late", 7),
    "medium": Alert("medium", "checkpoint step_000004 is not used any more", "a file differs from its hash", None),
    "severe": Alert("severe", "SAFE_MODE", "a budget is spent; see `verl-core confirm`", 12),
    "chinese": Alert("medium", "存储没有响应", "挂载点卡住了 — 请检查", None),
    "several_lines": Alert("light", "two\nlines", 'first\nsecond "quoted" <b>&amp;</b> {braces} %s %d', 1),
    "empty": Alert("light", "t", "", None),
    "long": Alert("medium", "long", "x" * 20_000, None),
}


class AlertSinkSuite:
    """Needs the fixtures ``sink``, and ``received``: a function that returns the text of all that was delivered."""

    limit_s = 10.0  # within which ``send`` must return

    @pytest.fixture
    def sink(self) -> AlertSink:
        raise NotImplementedError("give a fixture `sink`")

    @pytest.fixture
    def received(self) -> Callable[[], str]:
        raise NotImplementedError("give a fixture `received`: a function that returns what was delivered")

    @pytest.mark.parametrize("name", ALERTS)
    def test_an_alert_arrives_with_its_title_and_text(
        self, sink: AlertSink, received: Callable[[], str], name: str
    ) -> None:
        alert = ALERTS[name]
        begin = time.monotonic()
        sink.send(alert)
        assert time.monotonic() - begin < self.limit_s
        text = received()
        assert alert.title.splitlines()[0] in text
        assert (alert.text.splitlines() or [""])[0][:200] in text, "the beginning of a long text at least"

    def test_alerts_arrive_in_order_and_each_once(self, sink: AlertSink, received: Callable[[], str]) -> None:
        for number in range(5):
            sink.send(Alert("light", f"alert number {number}", "text", number))
        text = received()
        places = [text.find(f"alert number {number}") for number in range(5)]
        assert -1 not in places
        assert places == sorted(places)
        assert text.count("alert number 3") == 1

    def test_several_threads_may_send(self, sink: AlertSink, received: Callable[[], str]) -> None:
        """A stuck storage is told of by whoever waits for it."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(sink.send, [Alert("light", f"from thread {n}!", "text", None) for n in range(8)]))
        text = received()
        assert [n for n in range(8) if f"from thread {n}!" not in text] == []


class DeadAlertSinkSuite:
    """Needs the fixture ``dead_sink``: one whose receiver is gone, or cannot be written."""

    limit_s = 15.0

    @pytest.fixture
    def dead_sink(self) -> AlertSink:
        raise NotImplementedError("give a fixture `dead_sink`")

    def test_it_raises_only_what_a_run_survives_and_in_time(self, dead_sink: AlertSink) -> None:
        begin = time.monotonic()
        with pytest.raises(GUARDED):
            dead_sink.send(ALERTS["severe"])
        assert time.monotonic() - begin < self.limit_s


VALUES: Mapping[str, Mapping[str, float]] = {
    "usual": {"loss": 0.25, "kl": 1e-9, "tokens": 123456.0, "reward_mean": -1.0},
    "none": {},
    "not_finite": {"loss": math.nan, "grad_norm": math.inf, "kl": -math.inf},
    "huge": {"tokens": 1e30, "tiny": 5e-324},
}


class MetricSinkSuite:
    """Needs the fixture ``sink``; a step may come again after a restart, the last values win."""

    limit_s = 5.0

    @pytest.fixture
    def sink(self) -> MetricSink:
        raise NotImplementedError("give a fixture `sink`")

    @pytest.mark.parametrize("name", VALUES)
    def test_any_values_are_taken_in_time(self, sink: MetricSink, name: str) -> None:
        begin = time.monotonic()
        sink.emit(1, VALUES[name])
        assert time.monotonic() - begin < self.limit_s

    def test_steps_may_come_again_and_with_other_names(self, sink: MetricSink) -> None:
        for step in (1, 2, 3, 2, 3, 4):
            sink.emit(step, {"loss": 1.0 / step, f"only_in_{step}": 1.0})

    def test_the_values_are_not_kept_or_changed(self, sink: MetricSink) -> None:
        values = {"loss": 0.5}
        sink.emit(1, values)
        assert values == {"loss": 0.5}
        values.clear()
        sink.emit(2, {"loss": 0.25})
