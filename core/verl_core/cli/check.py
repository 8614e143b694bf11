"""``verl-core check``: everything that a start asks before it loads a model; and whether the pins are installed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .. import plugins as plugin_loader
from ..api import absolute_uri
from ..config import LoadedConfig, Report, inspect_config, read_config
from ..config.frozen import FILE, check_frozen
from ..errors import InputError, PreflightError
from ..health.start import preflight
from ..inputs import Inputs, Start, storage_at
from .findings import rows_of, show


def check(
    config: Annotated[str | None, typer.Option("--config", help="The config file.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key.of.block=value (repeatable).")] = None,
    plugins: Annotated[list[str] | None, typer.Option("--plugins", help="Plugins to load (a,b; repeatable).")] = None,
    run_dir: Annotated[str | None, typer.Option("--run-dir", help="Folder or URI of the run.")] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help=f"Hold what is installed against {FILE}; alone, or beside --config.")
    ] = False,
    requirements: Annotated[str, typer.Option("--requirements", help="The file of pins for --frozen.")] = FILE,
) -> None:
    """Check config, plugins, paths, devices, stores, model folder and data; exit code 2 when a run would be refused.

    Leaves nothing behind: stores are tried with an object that is deleted again.
    """
    if config is None and not frozen:
        raise InputError("nothing to check", where="check", remedy="--config FILE, --frozen, or both")
    report, fine = Report(), ""
    if frozen:
        file = Path(requirements).absolute()
        report += Report.of(check_frozen(file), {})
        fine = f"{file}: what is installed is what is pinned"
    if config is not None:
        found, prompts = _inspected(config, overrides or (), plugins or (), run_dir)
        report += found
        fine = f"{config}: config, plugins, paths, model folder and {prompts} prompts are fine"
    show(rows_of(report))
    if report.errors:
        raise typer.Exit(InputError.exit_code)
    typer.echo(fine)


def _inspected(
    config: str, overrides: Sequence[str], plugins: Sequence[str], run_dir: str | None
) -> tuple[Report, int]:
    """All findings, and how many prompts there are. What is read last is read only when nothing before it is wrong."""
    report = Report()
    place = None if run_dir is None else absolute_uri(run_dir)
    try:
        loaded = read_config(config, overrides)
        try:
            found = plugin_loader.load([*plugins, *loaded.config.plugins])
        except InputError as error:
            return inspect_config(loaded.config, run_dir=place, places=loaded.places) + Report((error,)), 0
        report = preflight(loaded, found, place, partial(storage_at, found, loaded.config), "check").report
        return report, 0 if report.errors else _prompts(loaded, found, place)
    except InputError as error:
        return report + Report(error.findings if isinstance(error, PreflightError) else (error,)), 0


def _prompts(loaded: LoadedConfig, found: plugin_loader.Loaded, place: str | None) -> int:
    """Reads all the data, those for evaluation, too."""
    inputs = Inputs(loaded, found, Start(place or ""))
    prompts, _ = inputs.train.prompts, inputs.val
    return len(prompts)
