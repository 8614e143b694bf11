"""What a start goes on with, domain by domain, for its log: checkpoint, runtime and orchestration state."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .history import History
from .runtime import runtime_state
from .schedule import Schedule

_log = logging.getLogger("verl.start")


def restored(history: History, schedule: Schedule, changes: Sequence[str], step: int) -> None:
    """Say it, unless the run begins. ``changes``: of data and config, by force; ``step``: of the checkpoint."""
    if not history.steps and not history.batches:
        return
    ahead, state = history.step - step, runtime_state(history, schedule, step)
    where = f"step {step}, policy {history.digest(step)}" if step else "none, from the base model"
    again = f"; {ahead} more steps are on record and run again" if ahead > 0 else ""
    _log.info("checkpoint state: %s%s", where, again)
    window = f"KL window of {len(state.kl_window)} steps, reward window of {len(state.reward_window)}"
    _log.info("runtime state: epoch %d, %d prompts consumed, %s", state.epoch, state.sampler_offset, window)
    verdict = f"resumed by force: {'; '.join(changes)}" if changes else "data and config as they were"
    _log.info("orchestration state: %s", verdict)
