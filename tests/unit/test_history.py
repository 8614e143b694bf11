"""What a restart remembers: the state log, folded. Later lines win, budgets go on, a confirmation ends them."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from verl_core.config.schema import FaultToleranceConfig
from verl_core.recovery.supervisor import decide
from verl_core.state.events import Confirmed, Decided, Event, FaultSeen, RewardUpdated, RolloutComplete, TrainStepDone
from verl_core.state.history import History, fold
from verl_core.state.journal import Entry
from verl_core.types import (
    BatchKey,
    BatchRef,
    BuildContext,
    CheckpointRef,
    Decision,
    Fault,
    RewardSource,
    StepResult,
    UpdateMetrics,
)
from verl_core_recovery.retry import RetryConfig, build_retry

POLICIES = [build_retry(RetryConfig(), BuildContext())]
CONFIG = FaultToleranceConfig()


def entry(event: str, payload: object, attempt: int = 1, time: float = 100.0) -> Entry:
    """As a reader finds it: JSON values only."""
    plain: Mapping[str, object] = orjson.loads(orjson.dumps(payload))
    return Entry(0, time, "run", 0, attempt, "n", "TRAIN", event, plain, "", "")


def of(event: Event, attempt: int = 1) -> Entry:
    return entry(event.name, event, attempt)


def lived(log: list[Entry], fault: Fault, attempt: int) -> str:
    """One life: it reads the log, meets the fault, decides, and writes both down."""
    log.append(of(FaultSeen(fault), attempt))
    decision = decide(fault, fold(log), CONFIG, POLICIES, now=100.0)
    log.append(of(Decided(fault, decision), attempt))
    return decision.action


def batch_fault(batch: int) -> Fault:
    return Fault("rollout_error", "rollout", f"batch epoch_0/batch_{batch}", "a fit", 1, (BatchKey(0, batch),))


def test_c15_budgets_are_counted_across_restarts_until_a_person_confirms() -> None:
    log: list[Entry] = []
    assert [lived(log, batch_fault(0), attempt) for attempt in range(1, 6)] == ["reschedule"] * 3 + ["safe_mode"] * 2

    log = []
    limit = CONFIG.severity_thresholds.retries_per_window
    actions = [lived(log, batch_fault(batch), attempt=batch) for batch in range(limit + 2)]
    assert actions == ["reschedule"] * limit + ["safe_mode"] * 2, "of the window, however many batches share it"
    log.append(of(Confirmed("someone", "looked")))
    assert lived(log, batch_fault(0), attempt=99) == "reschedule"


def done(step: int, digest: str, reward: float, attempt: int) -> Entry:
    metrics = UpdateMetrics(0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 1)
    return of(TrainStepDone(StepResult(step, metrics, digest, reward, 0.1), (BatchKey(0, step),), attempt > 1), attempt)


def test_c16_a_step_that_is_run_again_counts_once_and_the_last_record_wins() -> None:
    first = [done(step, f"old {step}", 0.1, 1) for step in (1, 2, 3)]
    again = [done(step, f"new {step}", 0.2, 2) for step in (2, 3, 4)]
    history = fold([*first, *again])
    assert history.rewards == [0.1, 0.2, 0.2, 0.2]
    assert [history.steps[step].policy_digest for step in (1, 2, 3, 4)] == ["old 1", "new 2", "new 3", "new 4"]
    assert [history.steps[step].attempt for step in (1, 2, 3, 4)] == [1, 2, 2, 2]
    assert history.step == 4


def saved(step: int) -> Entry:
    return entry("checkpoint_committed", {"ref": CheckpointRef(step, 0, 1, f"step_{step:06d}", "blake3:0", 1)})


def test_checkpoints_that_were_given_up_or_condemned_are_gone() -> None:
    log = [saved(step) for step in (2, 4, 6)]
    log.append(entry("checkpoints_deleted", {"steps": [2]}))
    log.append(entry("condemned", {"kind": "checkpoint", "step": 6, "name": "step_000006", "reason": "damage"}))
    history = fold(log)
    assert sorted(history.checkpoints) == [4]
    assert history.condemned == ["step_000006"]
    assert sorted(fold([*log, saved(6)]).checkpoints) == [4, 6], "saved anew"


def test_nothing_read_is_a_run_that_has_not_begun() -> None:
    history = fold([])
    assert (history.step, history.attempt, history.state, history.policy_digest) == (0, 0, "INIT", "")
    assert history == History()


def test_a_decision_that_is_no_retry_spends_no_budget() -> None:
    fault = batch_fault(0)
    log = [of(Decided(fault, Decision("safe_mode", "spent")))]
    assert fold(log).retry_times == []


def test_a_batch_belongs_to_the_reward_of_the_attempt_that_made_it_first() -> None:
    def made(batch: int, attempt: int) -> Entry:
        ref = BatchRef(BatchKey(0, batch), 0, attempt, 0, "blake3:x", 1, 1, 0.5, (batch,))
        return of(RolloutComplete(ref, reused=False), attempt)

    def swapped(name: str, attempt: int) -> Entry:
        return of(RewardUpdated("", RewardSource("a"), RewardSource(name), 2, 0.5, 0.1, 8), attempt)

    log = [made(0, 1), swapped("b", 1), made(1, 2), made(0, 2), swapped("c", 3), made(2, 4), made(0, 4), made(3, 3)]
    history = fold(log)
    assert [history.swaps_since(BatchKey(0, batch)) for batch in range(5)] == [2, 1, 0, 1, 0]
    assert (history.reward.name, history.scale) == ("c", (0.5, 0.1))
