"""Policy ``rebuild``: the training group goes back to the newest good state, within its budgets."""

from __future__ import annotations

from typing import get_args

import pytest
from verl_core.types import BuildContext, Fault, FaultHistory, FaultKind, Severity
from verl_core_recovery.rebuild import KINDS, RebuildConfig, build_rebuild

POLICY = build_rebuild(RebuildConfig(times=2), BuildContext())


def decided(
    kind: FaultKind, role: str = "train", rebuilds: int = 0, window: int = 0, severity: Severity = "medium"
) -> str:
    fault = Fault(kind, role, "step 3", "evidence", 3)
    decision = POLICY.decide(fault, FaultHistory(9, rebuilds, window, 3, 12, severity))
    return decision.action if decision else "left to others"


@pytest.mark.parametrize("kind", KINDS)
def test_faults_of_the_training_group_are_rebuilt_twice_a_scope(kind: FaultKind) -> None:
    assert [decided(kind, rebuilds=n) for n in range(4)] == ["rebuild"] * 2 + ["left to others"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_budget_of_the_window_ends_it(kind: FaultKind) -> None:
    assert decided(kind, window=11) == "rebuild"
    assert decided(kind, window=12) == "left to others"


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_faults_of_rollouts_and_severe_ones_are_left_to_others(kind: FaultKind) -> None:
    assert decided(kind, role="rollout") == "left to others"
    assert decided(kind, severity="severe") == "left to others"
