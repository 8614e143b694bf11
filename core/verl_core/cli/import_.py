"""``verl-core import``: a checkpoint of verl as a Hugging Face folder that a run can start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.model_folder import check_model_folder
from .export import needed_packages

if TYPE_CHECKING:
    from ..interchange.verl_fsdp import Imported


def import_checkpoint(
    source: Annotated[str, typer.Argument(help="global_step_N/actor of an FSDP run of verl.")],
    to: Annotated[str, typer.Option("--to", help="A folder that is not there yet.")],
    weights_only: Annotated[bool, typer.Option("--weights-only", help="Leave AdamW's moments behind.")] = False,
) -> None:
    """Write a checkpoint of verl as a Hugging Face model folder, load it again and compare every bit."""
    with needed_packages():
        from ..interchange.verl_fsdp import import_model
    target = Path(to).expanduser().absolute()
    done = import_model(Path(source).expanduser().absolute(), target, optimizer=not weights_only)
    _tell(done, to)
    for finding in check_model_folder(target):
        typer.echo(f"a start will refuse this: {finding}", err=True)
    typer.echo(f"next: verl-core run --config FILE --run-dir DIR --set model.actor.path={shlex.quote(to)}")


def _tell(done: Imported, to: str) -> None:
    typer.echo(f"{done.tensors} tensors of {done.world_size} ranks in {to}, loaded again: policy {done.policy_digest}")
    if done.moments is not None:
        typer.echo(f"optimizer: moments of {done.moments.parameters} parameters after {done.moments.step} updates")
    else:
        typer.echo(f"optimizer: not imported: {done.no_moments}")
    typer.echo(
        "not imported: random state and learning-rate schedule (extra_state_*.pt), the place in the data (data.pt)"
    )
