"""Which steps are saved: a pure function of the config and of what the steps so far reported.

The machine carries a ``Trend`` from step to step. A start folds the records of the state log into the same one, so that
a run saves at the same steps however often it is killed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Literal

from ..config.schema import FaultToleranceConfig

Measured = tuple[int, float | None, float | None]  # step, loss, KL; a skipped step has neither


@dataclass(frozen=True, slots=True)
class Trend:
    """What the steps up to ``step`` come to."""

    step: int = 0
    losses: tuple[float, ...] = ()  # the newest, a window of them at most
    mark: float | None = None  # mean of the window at the last milestone of the loss; None: no window was full yet
    kl: Literal["", "above", "met"] = ""  # whether it ever was above its target, and came down to it since
    milestone: bool = False  # whether this step is one


BEGIN = Trend()


@dataclass(frozen=True, slots=True)
class SaveRule:
    """A step is saved when the interval that is in force divides its number, or when it is a milestone."""

    phases: tuple[tuple[int, int], ...]  # (first step, interval), ascending from 0; empty: no step is saved
    window: int = 0  # steps; 0: nothing depends on the loss
    volatility: float = math.inf  # deviation within the window, as a share of the mean absolute loss
    loss_drop: float = 0.0  # share of the last milestone's mean loss; 0: off
    kl: float | None = None

    @staticmethod
    def every(steps: int) -> SaveRule:
        """One interval for the whole run; 0: no step is saved."""
        return SaveRule(((0, steps),) if steps else ())

    @staticmethod
    def of(config: FaultToleranceConfig) -> SaveRule:
        """The rule of a config that satisfies its constraints."""
        fixed = SaveRule.every(config.checkpoint_interval_steps if config.enabled else 0)
        adaptive = config.adaptive_checkpoint
        if not (config.enabled and adaptive.enabled):
            return fixed
        return SaveRule(
            tuple((phase.steps, phase.interval) for phase in adaptive.intervals) or fixed.phases,
            adaptive.volatility_window,
            adaptive.volatility_threshold,
            adaptive.milestone_loss_drop,
            adaptive.milestone_kl,
        )

    def due(self, trend: Trend) -> bool:
        """Whether the step that ``trend`` ends with is saved."""
        started = [interval for first, interval in self.phases if first <= trend.step]
        if trend.step == 0 or not started:
            return False
        interval = max(1, started[-1] // 2) if self._volatile(trend) else started[-1]
        return trend.milestone or trend.step % interval == 0

    def after(self, trend: Trend, measured: Measured) -> Trend:
        """The trend with one more step. Values that are not finite count as not measured."""
        step, loss, kl = measured
        losses, mark, fell = trend.losses, trend.mark, False
        if self.window and loss is not None and math.isfinite(loss):
            losses = (*losses, loss)[-self.window :]
            mark, fell = self._marked(losses, mark)
        above = trend.kl
        if self.kl is not None and above != "met" and kl is not None and math.isfinite(kl):
            above = "above" if kl > self.kl else "met" if above else ""
        return Trend(step, losses, mark, above, fell or (above != trend.kl and above == "met"))

    def fold(self, records: Iterable[Measured], step: int) -> Trend:
        """The trend after ``step``; ``records`` are those of the steps up to it, in order."""
        trend = BEGIN
        for measured in records:
            trend = self.after(trend, measured)
        return trend if trend.step == step else replace(trend, step=step, milestone=False)

    def _volatile(self, trend: Trend) -> bool:
        losses = trend.losses
        full = bool(self.window) and len(losses) == self.window
        return full and pstdev(losses) > self.volatility * fmean(map(abs, losses))

    def _marked(self, losses: tuple[float, ...], mark: float | None) -> tuple[float | None, bool]:
        """The mark of the newest milestone, and whether this window is one; the first full window only sets it."""
        if not self.loss_drop or len(losses) < self.window:
            return mark, False
        mean = fmean(losses)
        if mark is None:
            return mean, False
        fell = mark - mean > 0 and mark - mean >= self.loss_drop * abs(mark)
        return (mean, True) if fell else (mark, False)
