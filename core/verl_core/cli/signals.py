"""What signals ask of a run: SIGUSR1 a save at once, SIGTERM and Ctrl-C a save and the end, a second one the end now.

Handlers only leave a note that the loop reads between events, so none of them ever interrupts a save.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from ..api import Trainer

STOPS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}


@contextmanager
def heard(trainer: Trainer) -> Iterator[None]:
    """Listen for as long as the trainer runs. For the main thread."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in STOPS:  # the next one is not heard: it ends the process, which loses nothing
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        if trainer.stop(STOPS[signal.Signals(number)]):
            typer.echo(f"{STOPS[signal.Signals(number)]}: saving, then leaving; once more to leave at once", err=True)
        else:
            os.kill(os.getpid(), number)

    def save(number: int, _: FrameType | None) -> None:
        trainer.save_checkpoint()

    before = {each: signal.signal(each, stop) for each in STOPS}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, save)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
