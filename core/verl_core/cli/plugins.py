"""``verl-core plugins``: what is installed, and with ``--check`` whether it works."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from ..errors import PluginError
from ..plugins import PluginInfo, discover, find, load_alone, split_names


@dataclass(frozen=True, slots=True)
class _Report:
    offers: tuple[str, ...]  # "storage local", …
    error: str | None


def plugins(
    only: Annotated[list[str] | None, typer.Option("--plugins", help="Only these (a,b; repeatable).")] = None,
    check: Annotated[bool, typer.Option("--check", help="Import each by itself and say what it offers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the installed plugins, without importing them.

    With --check each is imported, and one that is broken makes exit code 2.
    """
    installed = discover()
    names = split_names(only or ())
    for name in names:
        find(name, installed)
    shown = [info for info in installed if not names or info.name in names]
    reports = [_check(info, installed) for info in shown] if check else None
    typer.echo(_as_json(shown, reports) if as_json else _as_table(shown, reports))
    if any(report.error for report in reports or ()):
        raise typer.Exit(2)


def _check(info: PluginInfo, installed: list[PluginInfo]) -> _Report:
    try:
        find(info.name, installed)
        providers = load_alone(info).registry.providers()
    except PluginError as error:
        return _Report((), f"{error.what} — {error.remedy}")
    return _Report(tuple(f"{provider.kind} {provider.name}" for provider in providers), None)


def _as_json(shown: list[PluginInfo], reports: list[_Report] | None) -> str:
    if reports is None:
        return json.dumps([asdict(info) for info in shown], indent=2)
    return json.dumps([asdict(i) | asdict(r) for i, r in zip(shown, reports, strict=True)], indent=2)


def _as_table(shown: list[PluginInfo], reports: list[_Report] | None) -> str:
    head = ("name", "distribution", "module", "default")
    rows = [(i.name, f"{i.distribution} {i.version}", i.module, "yes" if i.default else "") for i in shown]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
    for position, report in enumerate(reports or (), start=1):
        lines[position] += "  " + (f"error: {report.error}" if report.error else ", ".join(report.offers))
    return "\n".join(line.rstrip() for line in lines)
