"""Which steps are saved: by phase, more often while the loss is volatile, at milestones; the same after any restart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.checkpoint.when import BEGIN, Measured, SaveRule
from verl_core.config.schema import AdaptiveCheckpointConfig, FaultToleranceConfig, SaveInterval

values = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(-3, 3)
rules = st.builds(
    SaveRule,
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(
        lambda n: tuple((10 * i, each) for i, each in enumerate(n))
    ),
    st.integers(2, 5),
    st.floats(0.1, 2),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.none() | st.floats(0.1, 2),
)


def records(losses: Sequence[float | None], kls: Sequence[float | None] = ()) -> list[Measured]:
    padded = [*kls, *[None] * (len(losses) - len(kls))]
    return [(step, loss, kl) for step, (loss, kl) in enumerate(zip(losses, padded, strict=True), 1)]


def saved(rule: SaveRule, steps: Sequence[Measured]) -> list[int]:
    """The steps that an undisturbed run saves."""
    trend, found = BEGIN, []
    for measured in steps:
        trend = rule.after(trend, measured)
        if rule.due(trend):
            found.append(measured[0])
    return found


def test_each_phase_has_its_interval() -> None:
    rule = SaveRule(((0, 2), (6, 5), (20, 3)))
    assert saved(rule, records([1.0] * 25)) == [2, 4, 10, 15, 21, 24]
    assert saved(SaveRule.every(0), records([1.0] * 25)) == []


def test_the_interval_is_halved_while_the_loss_is_volatile_and_only_then() -> None:
    rule = SaveRule(((0, 4),), window=4, volatility=1.0)
    calm, wild = [1.0, 1.1, 0.9, 1.0], [1.0, -2.0, 3.0, -4.0]
    assert saved(rule, records(calm * 4)) == [4, 8, 12, 16]
    assert saved(rule, records(calm + wild + calm * 2)) == [4, 6, 8, 10, 12, 16]
    assert saved(SaveRule(((0, 1),), 2, 0.1), records([1.0, -1.0] * 2)) == [1, 2, 3, 4], "never below 1"
    assert saved(SaveRule(((0, 5),), 2, 0.1), records([1.0, -1.0] * 3)) == [2, 4, 6]


def test_noise_around_zero_is_not_volatile_by_default_and_a_spike_is() -> None:
    adaptive = AdaptiveCheckpointConfig(enabled=True, intervals=[SaveInterval(0, 40)])
    rule = SaveRule.of(FaultToleranceConfig(adaptive_checkpoint=adaptive))
    noise = [0.01, -0.02, 0.015, -0.005] * 5
    assert saved(rule, records(noise * 4)) == [40, 80]
    assert saved(rule, records([*noise[:10], 0.9, *noise[:9], *noise])) == [20, 40]


def test_a_loss_that_fell_by_the_share_is_a_milestone_and_the_next_counts_from_there() -> None:
    rule = SaveRule(((0, 1000),), window=2, loss_drop=0.1)
    assert saved(rule, records([1.0, 1.0, 0.95, 0.85, 0.85, 0.8, 0.75, 0.2])) == [4, 7, 8]
    assert saved(rule, records([-1.0, -1.0, -1.05, -1.2, -1.2])) == [4], "a loss below zero falls, too"
    assert saved(rule, records([0.0, 0.0, 0.0, 0.0])) == [], "what stays where it is does not fall"
    assert saved(rule, records([1.0, None, 1.0, None, 0.5])) == [5], "a skipped step has no loss"


def test_the_kl_that_first_comes_down_to_its_target_is_a_milestone_once() -> None:
    rule = SaveRule(((0, 1000),), kl=0.1)
    assert saved(rule, records([1.0] * 7, [0.01, 0.2, None, 0.3, 0.1, 0.2, 0.05])) == [5]
    assert saved(rule, records([1.0] * 3, [0.0, 0.0, 0.0])) == [], "it never was above"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_the_state_log_cannot_hold_counts_as_not_measured(bad: float) -> None:
    rule = SaveRule(((0, 4),), 2, 0.5, 0.1, 0.5)
    assert rule.fold(records([1.0, bad, 0.5], [0.9, bad, 0.8]), 3) == rule.fold(
        records([1.0, None, 0.5], [0.9, None, 0.8]), 3
    )


@given(rules, st.lists(st.tuples(values, values), max_size=40), st.data())
def test_a_restart_at_any_step_decides_as_the_undisturbed_run(
    rule: SaveRule, measured: list[tuple[float | None, float | None]], data: st.DataObject
) -> None:
    steps = [(step, *each) for step, each in enumerate(measured, 1)]
    cut = data.draw(st.integers(0, len(steps)))
    trend, late = rule.fold(steps[:cut], cut), []
    for each in steps[cut:]:
        trend = rule.after(trend, each)
        if rule.due(trend):
            late.append(each[0])
    assert late == [step for step in saved(rule, steps) if step > cut]


@given(rules, st.lists(st.tuples(values, values), max_size=40))
def test_no_gap_is_longer_than_the_intervals_say(
    rule: SaveRule, measured: list[tuple[float | None, float | None]]
) -> None:
    due = saved(rule, [(step, *each) for step, each in enumerate(measured, 1)])
    longest = max(interval for _, interval in rule.phases)
    gaps = [later - earlier for earlier, later in zip([0, *due], [*due, len(measured)], strict=True)]
    assert all(gap < 2 * longest for gap in gaps)


def test_the_config_says_which_rule_holds() -> None:
    assert SaveRule.of(FaultToleranceConfig(enabled=False)) == SaveRule.every(0)
    assert SaveRule.of(FaultToleranceConfig()) == SaveRule.every(50)
    adaptive = AdaptiveCheckpointConfig(True, [SaveInterval(0, 5), SaveInterval(100, 20)], 8, 1.5, 0.05, 0.2)
    assert SaveRule.of(FaultToleranceConfig(adaptive_checkpoint=adaptive)) == SaveRule(
        ((0, 5), (100, 20)), 8, 1.5, 0.05, 0.2
    )
    without = FaultToleranceConfig(adaptive_checkpoint=AdaptiveCheckpointConfig(True))
    assert SaveRule.of(without).phases == ((0, 50),), "without phases the one interval holds"
    off = FaultToleranceConfig(enabled=False, adaptive_checkpoint=adaptive)
    assert SaveRule.of(off) == SaveRule.every(0)
