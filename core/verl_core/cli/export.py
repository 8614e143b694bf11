"""``verl-core export``: the policy of a step as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..config.schema import Config
from ..errors import DamagedCheckpoint, InputError
from ..inputs import storage_at
from ..protocols import CheckpointReader
from ..registry import CHECKPOINTER
from ..state.folder import CHECKPOINTS
from ..state.history import History, fold
from ..state.journal import read_log
from ..types import BuildContext
from .common import RunPlace, find_run


def export(
    run: Annotated[str, typer.Argument(help="Folder or URI of the run.")],
    to: Annotated[str, typer.Option("--to", help="A folder that is not there yet.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Step of a checkpoint; default: the newest good one.")
    ] = None,
) -> None:
    """Write the policy of a checkpoint as a Hugging Face model folder, load it again and compare every bit."""
    place = find_run(run)
    history = fold(read_log(place.log_storage, place.log_path).entries)
    reader = open_checkpoint(place, history, step)
    with needed_packages():
        from ..interchange.export import export_model
    done = export_model(reader, Path(to).expanduser().absolute(), history.digest(reader.step))
    typer.echo(f"step {reader.step}: {done.tensors} tensors, {done.bytes / 1e6:.1f} MB in {to}")
    typer.echo(f"loaded again: policy {done.policy_digest}, as in the run")


def open_checkpoint(place: RunPlace, history: History, step: int | None) -> CheckpointReader:
    """A checkpoint whose every hash is right: that of the step, or the newest. Raises InputError, DamagedCheckpoint."""
    config = place.config or Config()
    uri = config.storage.checkpoint_uri
    storage = place.storage.child(CHECKPOINTS) if uri is None else storage_at(place.plugins, config, uri)
    context = BuildContext(run_id=history.run_id, branch=history.branch, attempt=history.attempt)
    checkpointer = place.plugins.registry.build(CHECKPOINTER, config.training.checkpointer, {}, context, storage)
    refs = {ref.step: history.checkpoints.get(ref.step, ref) for ref in checkpointer.list()}
    if step is not None and step not in refs:
        there = ", ".join(map(str, sorted(refs))) or "none"
        raise InputError(f"no committed checkpoint of step {step}", where=storage.uri, remedy=f"there are: {there}")
    if step is not None:
        return checkpointer.open(refs[step])
    for ref in refs.values():  # newest first
        try:
            return checkpointer.open(ref)
        except DamagedCheckpoint as error:
            typer.echo(f"skipped: {error}", err=True)
    raise InputError("no good checkpoint", where=storage.uri, remedy="run it until it saves one")


@contextmanager
def needed_packages() -> Iterator[None]:
    """Around imports that want torch and transformers."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"needs {error.name}", remedy="pip install 'verl-core[fsdp]'") from error
