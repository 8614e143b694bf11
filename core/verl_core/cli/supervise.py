"""``--max-restarts``: a light parent that has done the imports and forks the controller again after a crash.

The parent stays at one thread and does no work of its own: a fork of a process that ever ran a parallel region with two
threads would hang.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from ..errors import VerlError
from ..masking import show_traceback

WORTH_A_RESTART = (1,)  # exit codes; so is every death by a signal
HEAVY = ("torch", "transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto")


def import_ahead(model: Path) -> None:
    """The imports of a run, so that a forked child finds them done. What is missing is left for the child to report."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        kind = json.loads((model / "config.json").read_text())["model_type"]
        names = [*HEAVY, f"transformers.models.{kind}.modeling_{kind}"]
    except (OSError, ValueError, KeyError):
        names = [*HEAVY]
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def supervised(once: Callable[[], None], max_restarts: int) -> None:
    """Run ``once`` in a child, again after each crash, at most ``max_restarts`` times; leave with its exit code."""
    for restart in range(max_restarts + 1):
        code, told_to_stop = _child(once)
        if told_to_stop or (code >= 0 and code not in WORTH_A_RESTART):
            raise typer.Exit(code if code >= 0 else 128 - code)
        if restart < max_restarts:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            typer.echo(f"the controller died ({how}); restart {restart + 1} of {max_restarts}", err=True)
    typer.echo(f"the controller died {max_restarts + 1} times; see `verl-core status`", err=True)
    raise typer.Exit(1)


def _child(once: Callable[[], None]) -> tuple[int, bool]:
    """Exit code of one forked run, negative for a signal; and whether SIGTERM came, which is passed on."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(_exit_code(once))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child hears Ctrl-C itself
    heard: list[int] = []

    def pass_on(number: int, _: object) -> None:
        heard.append(number)
        os.kill(pid, number)

    forward = signal.signal(signal.SIGTERM, pass_on)
    ask_to_save = signal.signal(signal.SIGUSR1, lambda number, _: os.kill(pid, number))
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), bool(heard)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, forward)
        signal.signal(signal.SIGUSR1, ask_to_save)


def _exit_code(once: Callable[[], None]) -> int:
    code = 0
    try:
        once()
    except VerlError as error:
        typer.echo(f"error: {error}", err=True)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # noqa: BLE001 - border: the end of the child
        show_traceback(type(error), error, error.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
