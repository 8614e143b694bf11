"""Recovery policy ``rebuild``: a training group that lost a rank, hangs or keeps failing is started anew.

It goes back to the newest good state and runs the steps since then again, on the batches that are committed. Comes
after ``retry``, and takes what that one gives up.
"""

from __future__ import annotations

from dataclasses import dataclass

from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import RecoveryPolicy
from verl_core.types import BuildContext, Decision, Fault, FaultHistory

KINDS = ("worker_lost", "timeout", "train_error")


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """``times``: rebuilds for one scope (a step), beyond the retries before them. The budget of the window is that of
    ``training.fault_tolerance``."""

    times: int = 2


class RebuildPolicy:
    def __init__(self, times: int) -> None:
        self._times = times

    def decide(self, fault: Fault, history: FaultHistory) -> Decision | None:
        """None when the fault is not of the training group, is severe, or a budget is spent."""
        if fault.role != "train" or fault.kind not in KINDS or history.severity == "severe":
            return None
        if history.rebuilds_of_scope >= self._times or history.in_window >= history.retries_per_window:
            return None
        return Decision(
            "rebuild", f"{fault.kind} of {fault.scope}: rebuild {history.rebuilds_of_scope + 1} of {self._times}"
        )


def build_rebuild(config: RebuildConfig, context: BuildContext) -> RebuildPolicy:
    return RebuildPolicy(config.times)


@hookimpl
def register_recovery_policies(register: Register[RecoveryPolicy]) -> None:
    register("rebuild", RebuildConfig, build_rebuild)
