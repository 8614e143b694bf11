"""``verl-core confirm``: a person lets a run in SAFE_MODE go on."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import InputError
from ..state.events import Confirmed
from ..state.held import held_run
from ..state.machine import State
from .common import find_run

CONFIRMED = "confirm"  # stands where a controller's nonce stands


def confirm(
    run: Annotated[str, typer.Argument(help="Folder or URI of the run.")],
    name: Annotated[str, typer.Option("--name", help="Who confirms.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is safe to go on.")],
) -> None:
    """End SAFE_MODE; name and reason go into the state log. Then run it again: it resumes from a checkpoint."""
    place = find_run(run)
    with held_run(place.storage, place.log_storage, place.log_path) as held:
        if held.history.state != State.SAFE_MODE:
            what = f"the run is in state {held.history.state}, there is nothing to confirm"
            raise InputError(what, where=place.storage.uri)
        held.note(Confirmed.name, State.INIT, Confirmed(name, reason), CONFIRMED)
    typer.echo(f"confirmed by {name}; run it again to go on")
