"""Observer hooks, guarded: every listener runs, its errors are counted and logged, and never reach the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .errors import PluginError, StorageError
from .types import Alert, BatchRef, CheckpointRef, Decision, Fault, RunFinished, StepResult

log = logging.getLogger("verl")

HOOKS = (
    "run_started",
    "rollout_committed",
    "step_finished",
    "checkpoint_committed",
    "fault_detected",
    "recovery_finished",
    "alert_raised",
    "run_finished",
)


@dataclass(frozen=True, slots=True)
class _Listener:
    owner: str
    function: Callable[..., object]
    arguments: Sequence[str] | None  # names of those that it takes; None: all, in the order of the hook


class Observers:
    """Calls each hook's listeners in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[_Listener]] = {hook: [] for hook in HOOKS}
        self._errors: Counter[tuple[str, str]] = Counter()
        self.on_wait: Callable[[StorageError], None] = lambda error: None  # a storage call has no answer yet

    def add(
        self,
        hook: str,
        function: Callable[..., object],
        *,
        owner: str = "library",
        arguments: Sequence[str] | None = None,
    ) -> None:
        """Let ``function`` listen to ``hook``; it gets the hook's arguments in order. Raises ``PluginError``."""
        if hook not in self._listeners:
            raise PluginError(f"unknown observer hook '{hook}'", where=owner, remedy=f"one of: {', '.join(HOOKS)}")
        self._listeners[hook].append(_Listener(owner, function, arguments))

    @property
    def errors(self) -> Mapping[tuple[str, str], int]:
        """(owner, hook) → how many of its calls raised."""
        return self._errors

    def run_started(self, run_id: str, attempt: int, step: int) -> None:
        self._call("run_started", run_id=run_id, attempt=attempt, step=step)

    def rollout_committed(self, ref: BatchRef) -> None:
        self._call("rollout_committed", ref=ref)

    def step_finished(self, result: StepResult) -> None:
        self._call("step_finished", result=result)

    def checkpoint_committed(self, ref: CheckpointRef) -> None:
        self._call("checkpoint_committed", ref=ref)

    def fault_detected(self, fault: Fault) -> None:
        self._call("fault_detected", fault=fault)

    def recovery_finished(self, fault: Fault, decision: Decision, seconds: float) -> None:
        self._call("recovery_finished", fault=fault, decision=decision, seconds=seconds)

    def alert_raised(self, alert: Alert) -> None:
        self._call("alert_raised", alert=alert)

    def run_finished(self, result: RunFinished) -> None:
        self._call("run_finished", result=result)

    def _call(self, hook: str, **values: object) -> None:
        for listener in self._listeners[hook]:
            names = values if listener.arguments is None else listener.arguments
            try:
                listener.function(*(values[name] for name in names))
            except Exception as error:  # the border to observers, which must not hurt the run
                self._errors[listener.owner, hook] += 1
                count = self._errors[listener.owner, hook]
                log.warning(
                    "%s of %s failed (%d times so far): %s: %s",
                    hook, listener.owner, count, type(error).__name__, error, exc_info=error if count == 1 else None,
                )  # fmt: skip
