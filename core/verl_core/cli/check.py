"""``verl-core check``: what a start checks before it reads data or loads a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .. import plugins as plugin_loader
from ..api import health_errors
from ..config import LoadedConfig, inspect_config, read_config
from ..config.options import check_options
from ..errors import InputError, PreflightError, VerlError
from ..inputs import Inputs, Start


def check(
    config: Annotated[str, typer.Option("--config", help="The config file.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key.of.block=value (repeatable).")] = None,
    plugins: Annotated[list[str] | None, typer.Option("--plugins", help="Plugins to load (a,b; repeatable).")] = None,
    run_dir: Annotated[str | None, typer.Option("--run-dir", help="Folder or URI of the run.")] = None,
) -> None:
    """Check config, plugins, paths, model folder and data; exit code 2 when a run would be refused. Writes nothing."""
    rows: list[tuple[str, VerlError]] = []
    prompts = 0
    redact: Callable[[str], str] = str
    try:
        loaded = read_config(config, overrides or ())
        report = inspect_config(loaded.config, run_dir=run_dir, places=loaded.places)
        rows += [("error", error) for error in (*_plugin_errors(loaded, plugins or ()), *report.errors)]
        rows += [("warning", warning) for warning in report.warnings]
        redact = loaded.redact
        if not any(level == "error" for level, _ in rows):
            found = plugin_loader.load([*(plugins or ()), *loaded.config.plugins])
            prompts = len(Inputs(loaded, found, Start(run_dir or "")).train.prompts)
    except InputError as error:
        rows += [("error", e) for e in (error.findings if isinstance(error, PreflightError) else [error])]
    _print([(level, *(redact(text) for text in (e.where, e.what, e.remedy))) for level, e in rows])
    if any(level == "error" for level, _ in rows):
        raise typer.Exit(InputError.exit_code)
    typer.echo(f"{config}: config, plugins, paths, model folder and {prompts} prompts are fine")


def _plugin_errors(loaded: LoadedConfig, named: Sequence[str]) -> Sequence[VerlError]:
    try:
        registry = plugin_loader.load([*named, *loaded.config.plugins]).registry
    except InputError as error:
        return [error]
    return [*check_options(loaded.config, registry, loaded.places), *health_errors(loaded.config, registry)]


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    """A table on a terminal, one line a finding elsewhere."""
    console = Console()
    if not console.is_terminal:
        for level, place, what, remedy in rows:
            typer.echo(": ".join(part for part in (level, place, what) if part) + (f" — {remedy}" if remedy else ""))
        return
    if rows:
        table = Table("", "where", "what", "what to do", show_lines=True)
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False)
