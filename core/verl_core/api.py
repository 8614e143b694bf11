"""The library: build a training run from a config, and run it.

::

    import verl_core

    trainer = verl_core.create_trainer("grpo.yaml", run_dir="/data/run1")
    trainer.on("step_finished", lambda result: print(result.step, result.reward_mean))
    trainer.run()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from .assemble import assemble
from .config.findings import raise_all
from .config.load import LoadedConfig, read_config
from .config.schema import Config
from .errors import VerlError
from .health.start import preflight
from .inputs import Inputs, Start, storage_at
from .loop import Controller
from .plugins import discover, load
from .types import RunFinished

log = logging.getLogger("verl")


class Trainer:
    """A run that is configured and checked, but not begun: nothing is written before ``run``."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._controller: Controller | None = None
        self.config: Config = inputs.config
        self.metrics: list[Mapping[str, float]] = []  # one record a finished step, in order; a step run again is last
        self.on("step_finished", self._keep)

    def on(self, hook: str, function: Callable[..., object]) -> None:
        """Let ``function`` listen to an observer hook (``step_finished``, ``rollout_committed``, ``fault_detected`` …).

        It gets the hook's arguments in order; what it raises is logged and does not reach the run.
        """
        self._inputs.plugins.observers.add(hook, function)

    def run(self, until_step: int | None = None) -> RunFinished:
        """Begin the run or go on with it, to the end or to ``until_step``. Raises ``VerlError``."""
        start = self._inputs.start
        inputs = self._inputs if until_step is None else self._inputs.until(until_step)
        finished = already_finished(inputs) if start.resume == "auto" else None
        if finished is not None:
            return finished
        self._controller = assemble(inputs)
        try:
            return self._controller.run()
        finally:
            self._controller = None

    @property
    def state(self) -> str:
        """State of the run's machine (``ROLLOUT``, ``TRAIN`` …), "" when nothing is running."""
        return "" if self._controller is None else str(self._controller.machine.state)

    @property
    def total_steps(self) -> int:
        """Steps of the schedule: the smaller of ``total_steps`` and ``total_epochs``."""
        return self._inputs.schedule.total_steps

    def save_checkpoint(self) -> None:
        """Ask for a checkpoint of the newest finished step, at once, or after the training step that is under way. May
        be called from hooks, any thread and signal handlers. Raises VerlError when nothing is running."""
        if self._controller is None:
            raise VerlError("nothing is running", where="save_checkpoint", remedy="call it from a step_finished hook")
        self._controller.save_requested = True

    def stop(self, reason: str) -> bool:
        """Ask the run to end with a save, after the training step that is under way; False when nothing is running.

        May be called from any thread and from signal handlers. ``run`` returns, and its result says ``stopped_by``.
        """
        if self._controller is not None:
            self._controller.stop_requested = reason
        return self._controller is not None

    def _keep(self, result: object) -> None:
        controller = self._controller
        if controller is not None:
            record = controller.history.steps[controller.history.step]
            known = {"step": float(record.step), "reward_mean": record.reward_mean or 0.0, **record.metrics}
            self.metrics.append(known)


def create_trainer(
    config: str | Path | Mapping[str, object] | Config | LoadedConfig,
    *,
    run_dir: str | Path,
    plugins: Sequence[str] = (),
    overrides: Sequence[str] = (),
    resume: str = "auto",
    force_resume: bool = False,
    take_over: bool = False,
) -> Trainer:
    """Read and check everything that a run needs, and write nothing.

    ``config`` is a YAML file or a mapping of keys; ``overrides`` are ``key=value`` texts, as after ``--set``.
    ``resume``: ``auto`` (go on if the folder holds a run), ``never``, or a checkpoint of the run. ``take_over``: on a
    store without locks, do not wait for a controller on another host that may be dead. Raises InputError.
    """
    if isinstance(config, LoadedConfig):
        loaded = config
    elif isinstance(config, str | Path):
        loaded = read_config(str(config), overrides)
    else:
        loaded = read_config(None, overrides, base=config)
    place = absolute_uri(str(run_dir))
    found = load([*loaded.config.plugins, *plugins])
    checked = preflight(loaded, found, place, partial(storage_at, found, loaded.config), "start")
    raise_all(checked.report.errors)
    for warning in checked.report.warnings:
        log.warning("%s", warning)
    start = Start(place, resume, None, force_resume, take_over)
    return Trainer(Inputs(loaded, found, start, checked.placement))


def get_available_backends() -> dict[str, str]:
    """Installed plugins by name, with the distribution that they come from; imports none of them."""
    return {info.name: f"{info.distribution} {info.version}" for info in discover()}


def absolute_uri(place: str) -> str:
    """Paths of a command line and of the library are made absolute from the working folder; URIs stay."""
    return place if "://" in place else str(Path(place).expanduser().absolute())


def already_finished(inputs: Inputs) -> RunFinished | None:
    """The result of a run that has nothing left to do: starting it again changes nothing."""
    history = inputs.history()
    if history is None or history.state not in ("DONE", "EVAL", "PREPARE"):
        return None
    wanted = inputs.schedule.total_steps
    if inputs.start.until_step is not None:
        wanted = min(wanted, inputs.start.until_step)
    if history.step < wanted or max(history.checkpoints, default=0) < wanted:
        return None
    return RunFinished(history.state, history.step, history.policy_digest, tuple(history.rewards))
