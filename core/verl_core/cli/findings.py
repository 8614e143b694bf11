"""What was found before a start, shown: a table on a terminal, one line a finding elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import Report
from ..masking import masked

Row = tuple[str, str, str, str]  # level, where, what, what to do
_STYLES = {"error": "bold red", "warning": "yellow", "ok": "green"}


def rows_of(report: Report) -> list[Row]:
    """Errors first; then warnings, and what is so."""
    rows = [("error", error.where, error.what, error.remedy) for error in report.errors]
    rows += [("warning", warning.where, warning.what, warning.remedy) for warning in report.warnings]
    rows += [("ok", check, text, "") for check, text in report.facts]
    return [(level, *(masked(" ".join(text.split())) for text in rest)) for level, *rest in rows]  # type: ignore[misc]


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        for level, place, what, remedy in rows:
            line = ": ".join(part for part in (level, place, what) if part) + (f" — {remedy}" if remedy else "")
            typer.echo(line, err=console.stderr)
        return
    if rows:
        table = Table("", "where", "what", "what to do", show_lines=True)
        for level, *cells in rows:
            table.add_row(Text(level, _STYLES[level]), *(Text(cell) for cell in cells))
        console.print(table)
