from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.types import Decision, Fault, FaultHistory, FaultKind
from verl_core_recovery.retry import RetryPolicy

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


def fault(kind: FaultKind, role: str = "rollout", scope: str = "batch epoch_0/batch_3") -> Fault:
    return Fault(kind, role, scope, "evidence", 3)


def history(same_scope: int = 0, in_window: int = 0, times: int = 3, per_window: int = 12) -> FaultHistory:
    return FaultHistory(same_scope, 0, in_window, times, per_window, "light")


def action(of: Fault, seen: FaultHistory) -> str | None:
    decision = RetryPolicy().decide(of, seen)
    return decision.action if decision else None


@pytest.mark.parametrize("kind", ["rollout_timeout", "rollout_error", "worker_lost", "damage"])
def test_rollout_faults_are_rescheduled_while_both_budgets_last(kind: FaultKind) -> None:
    assert [action(fault(kind), history(n)) for n in range(5)] == ["reschedule"] * 3 + [None] * 2
    assert action(fault(kind), history(0, in_window=11)) == "reschedule"
    assert action(fault(kind), history(0, in_window=12)) is None
    assert action(fault(kind), history(0, times=0)) is None


def test_a_training_step_that_ran_out_of_memory_is_tried_again_once() -> None:
    oom = fault("train_oom", "train", "step 3")
    assert [action(oom, history(n)) for n in range(3)] == ["retry", None, None]
    assert action(oom, history(0, in_window=12)) is None


def test_storage_is_tried_again_while_both_budgets_last() -> None:
    assert [action(fault("storage"), history(n)) for n in range(5)] == ["retry"] * 3 + [None] * 2
    assert action(fault("storage"), history(0, in_window=12)) is None


@pytest.mark.parametrize(
    ("kind", "role"), [("damage", "train"), ("timeout", "train"), ("worker_lost", "train"), ("train_error", "train")]
)
def test_faults_of_other_policies_are_left_to_them(kind: FaultKind, role: str) -> None:
    assert action(fault(kind, role), history()) is None


def test_the_reason_says_what_and_how_often() -> None:
    decision = RetryPolicy().decide(fault("rollout_timeout"), history(1))
    assert decision == Decision("reschedule", "rollout_timeout of batch epoch_0/batch_3: reschedule 2 of 3")


@given(
    faults=st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("abc"), st.sampled_from(["rollout", "train"]))),
    times=st.integers(0, 4),
    per_window=st.integers(0, 20),
)
def test_no_scope_and_no_window_gets_more_than_its_budget(
    faults: list[tuple[FaultKind, str, str]], times: int, per_window: int
) -> None:
    seen: dict[tuple[str, str], int] = {}
    granted: dict[tuple[str, str], int] = {}
    for kind, scope, role in faults:
        key = (kind, scope)
        past = history(seen.get(key, 0), sum(granted.values()), times, per_window)
        seen[key] = seen.get(key, 0) + 1
        if RetryPolicy().decide(fault(kind, role, scope), past):
            granted[key] = granted.get(key, 0) + 1
    assert sum(granted.values()) <= per_window
    for (of_kind, _), count in granted.items():
        assert count <= (1 if of_kind.startswith("train_") else times)
