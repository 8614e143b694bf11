"""Recovery policy ``retry``: do the same again, elsewhere where that is possible, within the budgets of the config."""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import RecoveryPolicy
from verl_core.types import Action, BuildContext, Decision, Fault, FaultHistory


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """No keys of its own: its budgets are those of ``training.fault_tolerance``."""


class RetryPolicy:
    """Batches and lost rollout workers: rescheduled ``retry_times`` a scope. A training step that ran out of memory is
    tried again once: nothing has changed then. After another error nobody knows what has; it is not for this policy."""

    def decide(self, fault: Fault, history: FaultHistory) -> Decision | None:
        """None when the fault is not one to retry, or a budget is spent."""
        action, limit = _plan(fault, history)
        if action is None or history.same_scope >= limit or history.in_window >= history.retries_per_window:
            return None
        return Decision(action, f"{fault.kind} of {fault.scope}: {action} {history.same_scope + 1} of {limit}")


def _plan(fault: Fault, history: FaultHistory) -> tuple[Action | None, int]:
    """What to do about a fault of this kind, and how often for one scope."""
    match fault.kind:
        case "rollout_timeout" | "rollout_error":
            return "reschedule", history.retry_times
        case "worker_lost" | "damage" if fault.role == "rollout":
            return "reschedule", history.retry_times
        case "train_oom":
            return "retry", 1
        case "storage":
            return "retry", history.retry_times
        case _:
            return None, 0


def build_retry(config: RetryConfig, context: BuildContext) -> RetryPolicy:
    return RetryPolicy()


@hookimpl
def register_recovery_policies(register: Register[RecoveryPolicy]) -> None:
    register("retry", RetryConfig, build_retry)
