"""``verl-core confirm``: a person lets a run in SAFE_MODE go on."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..errors import InputError
from ..state.claim import read_run_id
from ..state.events import Confirmed
from ..state.history import fold
from ..state.journal import Journal, lockable, read_log, repair
from ..state.lease import hold
from ..state.machine import State
from ..state.spill import carry_over
from ..writes import WriteQueue
from .common import find_run

CONFIRMED = "confirm"  # stands where a controller's nonce stands


def confirm(
    run: Annotated[str, typer.Argument(help="Folder or URI of the run.")],
    name: Annotated[str, typer.Option("--name", help="Who confirms.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is safe to go on.")],
) -> None:
    """End SAFE_MODE; name and reason go into the state log. Then run it again: it resumes from a checkpoint."""
    place = find_run(run)
    unlock = hold(place.storage, place.log_storage, place.log_path)
    try:
        if not lockable(place.log_storage):
            carry_over(place.storage, place.log_storage, place.log_path)
        log = read_log(place.log_storage, place.log_path)
        history = fold(log.entries)
        if history.state != State.SAFE_MODE:
            raise InputError(
                f"the run is in state {history.state}, there is nothing to confirm", where=place.storage.uri
            )
        repair(place.log_storage, place.log_path, log, history.attempt)
        writes = WriteQueue(patience_s=10)
        identity = (read_run_id(place.storage), history.branch, history.attempt, CONFIRMED)
        journal = Journal(place.log_storage, place.log_path, log, writes, identity=identity, wall=time.time)
        journal.record(Confirmed.name, State.INIT, Confirmed(name, reason))
        writes.close()
    finally:
        unlock()
    typer.echo(f"confirmed by {name}; run it again to go on")
