"""From an error to a decision, purely: fault → severity → policies in order → decision; a spent budget escalates."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.schema import FaultToleranceConfig, SeverityThresholds
from ..errors import OutOfMemory, WorkerLost
from ..masking import masked
from ..protocols import RecoveryPolicy
from ..state.history import History
from ..types import BatchKey, Decision, Fault, FaultHistory, FaultKind, Severity


def fault_of(error: BaseException, role: str, step: int, keys: tuple[BatchKey, ...]) -> Fault:
    """Name the fault behind a worker's error."""
    scope = f"batch {', '.join(map(str, keys))}" if role == "rollout" else f"step {step}"
    kind: FaultKind = "rollout_error" if role == "rollout" else "train_error"
    if isinstance(error, WorkerLost):
        kind = "worker_lost"
    elif isinstance(error, OutOfMemory) and role == "train":
        kind = "train_oom"
    evidence = masked(str(error)) or type(error).__name__  # it goes into the state log, and a reward may raise anything
    return Fault(kind, role, scope, f"{type(error).__name__}: {evidence}", step, keys)


def severity_of(fault: Fault, history: History, limits: SeverityThresholds) -> Severity:
    """Light: one late batch, one error. Medium: a worker gone or stuck. Severe: budgets of the window are spent."""
    if fault.kind == "storage" or (fault.kind == "damage" and fault.role != "rollout"):
        return "severe"
    if fault.kind == "train_oom" and _same_kind(fault, history) > limits.oom_per_window:
        return "severe"
    return "medium" if fault.kind in ("worker_lost", "timeout") else "light"


def decide(
    fault: Fault, history: History, config: FaultToleranceConfig, policies: Sequence[RecoveryPolicy], now: float
) -> Decision:
    """The first policy that takes the fault decides; nobody's fault ends in SAFE_MODE. ``history`` has the fault."""
    limits = config.severity_thresholds
    same = sum(1 for kind, scope in history.faults if (kind, scope) == (fault.kind, fault.scope)) - 1
    recent = sum(1 for t in history.retry_times if now - t <= limits.window_sec)
    severity = severity_of(fault, history, limits)
    facts = FaultHistory(
        max(same, 0),
        history.rebuilt.count(fault.scope),
        recent,
        config.rollout_retry_times,
        limits.retries_per_window,
        severity,
    )
    for policy in policies:
        decision = policy.decide(fault, facts)
        possible = config.enabled or decision is None or decision.action != "rebuild"  # off: no batches to replay
        if decision is not None and possible:
            return decision
    return Decision("safe_mode", f"no recovery policy takes {fault.kind} of {fault.scope}, seen {same + 1} ×")


def _same_kind(fault: Fault, history: History) -> int:
    return sum(1 for kind, _ in history.faults if kind == fault.kind)
