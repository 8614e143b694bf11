"""``verl-core run``: begin a run, or go on with it."""

from __future__ import annotations

import atexit
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from .. import api
from ..config.load import LoadedConfig, read_config
from ..config.schema import Config
from ..errors import InputError, Interrupted, ObjectMissing, Stopped
from ..inputs import CONFIG, provider_of, storage_at
from ..plugins import load
from .config import resume_asked
from .progress import Progress
from .signals import heard
from .supervise import import_ahead, supervised

ConfigOption = Annotated[str | None, typer.Option("--config", help="The config file; default: the run's own.")]
RunDir = Annotated[str, typer.Option("--run-dir", "--log-dir", help="Folder or URI that holds the run.")]
Plugins = Annotated[list[str] | None, typer.Option("--plugins", help="Plugins to load (a,b; repeatable).")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="key.of.block=value (repeatable).")]
_RESUME = ("--resume", "--resume-from", "--resume-from-step")
Resume = Annotated[str, typer.Option(*_RESUME, help="auto, never, or a checkpoint of this run (path or step).")]
AsyncCheckpoint = Annotated[bool, typer.Option("--async-checkpoint", help="Accepted: saving never waits for the disk.")]
UntilStep = Annotated[int | None, typer.Option("--until-step", min=1, help="Stop after this step, with a checkpoint.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, print the resolved config, and write nothing.")]
MaxRestarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="Start again after a crash, at most this often, in under a second.")
]
ForceResume = Annotated[bool, typer.Option("--force-resume", help="Go on although config or data changed.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Do not wait for a controller on another host (a run on an object store).")
]


def run(
    run_dir: RunDir,
    config: ConfigOption = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    resume: Resume = "auto",
    until_step: UntilStep = None,
    dry_run: DryRun = False,
    max_restarts: MaxRestarts = 0,
    force_resume: ForceResume = False,
    take_over: TakeOver = False,
    async_checkpoint: AsyncCheckpoint = True,
    extra: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="More overrides.")] = None,
) -> None:
    """Train. A run that was killed goes on where it stood, bit for bit; a finished one is left as it is."""
    place = api.absolute_uri(run_dir)
    loaded = read_config(config or own_config(place, plugins or []), [*(overrides or []), *(extra or [])])
    resume = resume_asked(config) if config and resume == "auto" else resume
    resume = api.absolute_uri(resume) if "/" in resume else resume
    start(loaded, place, plugins or [], resume, until_step, dry_run, max_restarts, force_resume, take_over=take_over)


def start(
    loaded: LoadedConfig,
    place: str,
    plugins: list[str],
    resume: str,
    until_step: int | None,
    dry_run: bool,
    max_restarts: int,
    force_resume: bool,
    make_inputs: Callable[[], None] | None = None,
    take_over: bool = False,
) -> None:
    """What ``run`` and ``quickstart`` share once the config is there."""
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("verl.start").setLevel(logging.INFO)  # what a start goes on with

    if dry_run and make_inputs is not None:
        typer.echo(loaded.shown_text(), nl=False)
        return

    def once() -> None:
        if make_inputs is not None:
            make_inputs()
        trainer = api.create_trainer(
            loaded, run_dir=place, plugins=plugins, resume=resume, force_resume=force_resume, take_over=take_over
        )
        if dry_run:
            typer.echo(loaded.shown_text(), nl=False)
            return
        last_step = min(until_step or trainer.total_steps, trainer.total_steps)
        with Progress(place, last_step, lambda: trainer.state) as progress:
            progress.listen(trainer.on)
            with heard(trainer):
                result = trainer.run(until_step)
            progress.finished(result)
        if result.stopped_by:
            kind = Interrupted if result.stopped_by == "Ctrl-C" else Stopped
            what = f"stopped by {result.stopped_by} at step {result.step}, saved"
            raise kind(what, remedy=f"to go on: verl-core run --run-dir {place}")

    if max_restarts and not dry_run:
        load([*plugins, *loaded.config.plugins])
        import_ahead(Path(loaded.config.model.actor.path))
        supervised(once, max_restarts)
    else:
        once()


def own_config(place: str, plugins: list[str]) -> str:
    """A file with the config that a run was begun with."""
    missing = InputError("no --config given, and the folder holds no run", where=place, remedy="--config FILE")
    if provider_of(place) == "local":
        path = f"{place.removeprefix('file://')}/{CONFIG}"
        try:
            with open(path, "rb"):
                return path
        except OSError:
            raise missing from None
    found = load([provider_of(place), *plugins], defaults=False)
    try:
        text = storage_at(found, Config(), place).get(CONFIG)
    except ObjectMissing:
        raise missing from None
    copy = Path(mkdtemp(prefix="verl-core-")) / CONFIG
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    copy.write_bytes(text)
    return str(copy)
