"""The command line: one file per command, one place for errors and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from ..config import Report
from ..errors import PreflightError, VerlError
from ..masking import guard_tracebacks
from .check import check
from .config import config
from .confirm import confirm
from .export import export
from .findings import rows_of, show
from .import_ import import_checkpoint
from .plugins import plugins
from .quickstart import quickstart
from .run import run
from .simulate import simulate_command
from .status import status
from .update_reward import update_reward
from .verify import verify

app = typer.Typer(
    name="verl-core",
    help="Reinforcement-learning post-training of language models that survives kill -9.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, quickstart, status, verify, check, plugins, confirm, export, update_reward):
    app.command()(command)
app.command("import")(import_checkpoint)
app.add_typer(config, name="config")
app.command("train", help="The same as run.")(run)
app.command("simulate")(simulate_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("verl-core"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code; errors that are not ours leave with 1 and their traceback."""
    guard_tracebacks()
    try:
        app(arguments)
    except VerlError as error:
        _tell(error, Console(stderr=True))
        sys.exit(error.exit_code)


def _tell(error: VerlError, console: Console) -> None:
    """The findings of a preflight as a table on a terminal, as lines elsewhere."""
    if isinstance(error, PreflightError) and console.is_terminal:
        show(rows_of(Report(error.findings)), console)
    else:
        typer.echo(_explain(error), err=True)


def _explain(error: VerlError) -> str:
    """One line an error; the findings of a preflight below each other."""
    if not isinstance(error, PreflightError):
        return "error: " + _one_line(str(error))
    width = max((len(finding.where) for finding in error.findings), default=0)
    lines = [f"error: {len(error.findings)} findings before the start; nothing was written"]
    for finding in error.findings:
        remedy = f" — {finding.remedy}" if finding.remedy else ""
        lines.append(_one_line(f"{finding.where.ljust(width)}  {finding.what}{remedy}"))
    return "\n  ".join(lines)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


if __name__ == "__main__":
    main()
