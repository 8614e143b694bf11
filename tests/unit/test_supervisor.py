"""From fault to decision: budgets end every loop, across restarts, until a person confirms (C15)."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_core.config.schema import FaultToleranceConfig
from verl_core.errors import InputError, OutOfMemory, WorkerLost
from verl_core.recovery.supervisor import decide, fault_of, severity_of
from verl_core.state.history import History
from verl_core.types import BatchKey, BuildContext, Fault
from verl_core_recovery.retry import RetryConfig, build_retry

from tests.support.tiny import Tiny

CONFIG = FaultToleranceConfig()
POLICIES = [build_retry(RetryConfig(), BuildContext())]


def seen(history: History, fault: Fault) -> str:
    """Fault and decision go into the history, as the state log would put them there."""
    history.faults.append((fault.kind, fault.scope))
    decision = decide(fault, history, CONFIG, POLICIES, now=100.0)
    if decision.action in ("retry", "reschedule"):
        history.retry_times.append(100.0)
    return decision.action


def test_a_batch_that_never_comes_is_rescheduled_three_times_then_a_person_must_look() -> None:
    history = History()
    fault = fault_of(TimeoutError(), "rollout", 3, (BatchKey(0, 2),))
    assert [seen(history, fault) for _ in range(5)] == ["reschedule"] * 3 + ["safe_mode"] * 2


def test_c15_many_different_batches_that_fail_spend_the_budget_of_the_window() -> None:
    history = History()
    actions = [seen(history, fault_of(TimeoutError(), "rollout", i, (BatchKey(0, i),))) for i in range(20)]
    limit = CONFIG.severity_thresholds.retries_per_window
    assert actions == ["reschedule"] * limit + ["safe_mode"] * (20 - limit)


def test_faults_are_named_by_their_error_and_role() -> None:
    assert fault_of(OutOfMemory("x"), "train", 1, ()).kind == "train_oom"
    assert fault_of(WorkerLost("x"), "rollout", 1, ()).kind == "worker_lost"
    assert fault_of(ValueError("x"), "rollout", 1, ()).kind == "rollout_error"
    assert fault_of(ValueError("why"), "train", 7, ()).evidence == "ValueError: why"


def test_severity_follows_the_thresholds() -> None:
    limits = CONFIG.severity_thresholds
    oom = fault_of(OutOfMemory("x"), "train", 1, ())
    history = History()
    assert severity_of(oom, history, limits) == "light"
    history.faults += [(oom.kind, oom.scope)] * (limits.oom_per_window + 1)
    assert severity_of(oom, history, limits) == "severe"
    assert severity_of(fault_of(WorkerLost("x"), "rollout", 1, ()), history, limits) == "medium"


def test_policies_are_tuned_by_config_alone(tiny: Tiny, tmp_path: Path) -> None:
    chosen = "training.fault_tolerance.options.rebuild.times"
    assert tiny.trainer(tmp_path / "run", 8, [f"{chosen}=5"]).config.training.fault_tolerance.options
    for wrong, said in (("tmies=5", "did you mean 'times'"), ("times=x", "times")):
        with pytest.raises(InputError, match=said):
            tiny.trainer(tmp_path / "run", 8, [f"{chosen.removesuffix('times')}{wrong}"])
