"""``verl-core verify``: every hash of a run, the chain of its state log, and that each prompt was consumed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from ..config.schema import Config
from ..errors import DamagedError, VerlError
from ..inputs import storage_at
from ..protocols import Storage
from ..registry import CHECKPOINTER, WRITER
from ..state.audit import consumption_errors
from ..state.folder import CHECKPOINTS, ROLLOUTS
from ..state.history import History, fold
from ..state.journal import read_log
from ..types import BuildContext
from .common import RunPlace, find_run


def verify(run: Annotated[str, typer.Argument(help="Folder or URI of the run.")]) -> None:
    """Check a run from end to end; exit code 4 names what is damaged. Reads only."""
    place = find_run(run)
    log = read_log(place.log_storage, place.log_path)
    history = fold(log.entries)
    typer.echo(f"state log: {len(log.entries)} lines, chain whole" + (", torn last line" if log.torn else ""))
    found = [*_batches(place, history), *_checkpoints(place, history), *consumption_errors(history)]
    for error in found:
        typer.echo(f"damaged: {error}")
    if found:
        raise typer.Exit(DamagedError.exit_code)
    typer.echo(f"consumption: {history.step} steps, each batch once, each prompt once an epoch")
    typer.echo("clean")


def _batches(place: RunPlace, history: History) -> Iterator[VerlError]:
    storage = _storage(place, place.config.storage.rollout_storage_uri if place.config else None, ROLLOUTS)
    writer = place.plugins.registry.build(WRITER, "atomic", {}, BuildContext(run_id=history.run_id), storage)
    errors = [e for ref in history.committed.values() if (e := _error(lambda ref=ref: writer.load(ref)))]  # type: ignore[misc]
    typer.echo(f"batches: {len(history.committed)} committed, {len(errors)} damaged")
    yield from errors


def _checkpoints(place: RunPlace, history: History) -> Iterator[VerlError]:
    storage = _storage(place, place.config.storage.checkpoint_uri if place.config else None, CHECKPOINTS)
    context = BuildContext(run_id=history.run_id)
    checkpointer = place.plugins.registry.build(CHECKPOINTER, "sharded", {}, context, storage)
    errors = [e for ref in history.checkpoints.values() if (e := _error(lambda ref=ref: checkpointer.verify(ref)))]  # type: ignore[misc]
    typer.echo(f"checkpoints: {len(history.checkpoints)} kept, {len(errors)} damaged")
    yield from errors


def _storage(place: RunPlace, uri: str | None, name: str) -> Storage:
    return place.storage.child(name) if uri is None else storage_at(place.plugins, place.config or Config(), uri)


def _error(check: Callable[[], object]) -> VerlError | None:
    try:
        check()
    except VerlError as error:
        return error
    return None
