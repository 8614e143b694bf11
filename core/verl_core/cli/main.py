"""The command line: one file per command, one place for errors and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from ..errors import PreflightError, VerlError
from .check import check
from .confirm import confirm
from .plugins import plugins
from .quickstart import quickstart
from .run import run
from .simulate import simulate_command
from .status import status
from .verify import verify

app = typer.Typer(
    name="verl-core",
    help="Reinforcement-learning post-training of language models that survives kill -9.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, quickstart, status, verify, check, plugins, confirm):
    app.command()(command)
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
    try:
        app(arguments)
    except VerlError as error:
        typer.echo(_explain(error), err=True)
        sys.exit(error.exit_code)


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
