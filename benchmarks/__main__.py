"""``python -m benchmarks [--only NAME]``: run the groups, print a table, merge ``build/bench.json``.

A group is a module with ``measure() -> dict[str, float]``. Each runs in a process of its own, so that none inherits
another's memory, threads or crash; one that fails leaves the figures of the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .machine import describe

GROUPS = {name: f"benchmarks.{name}" for name in ("ft", "rollout", "storage", "checkpoint")}
RESULTS = Path("build/bench.json")
LIMIT_S = 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure; merge build/bench.json.")
    parser.add_argument("--only", choices=GROUPS, help="one group")
    only: str | None = parser.parse_args().only
    return run([GROUPS[only]] if only else list(GROUPS.values()), RESULTS)


def run(modules: Sequence[str], results: Path) -> int:
    """Measure each module, merge its figures into ``results``; 1 when any failed, else 0."""
    status = 0
    for module in modules:
        print(f"{module} …", file=sys.stderr)
        figures = _measure(module)
        if figures is None:
            status = 1
            print(f"{module} failed", file=sys.stderr)
        else:
            _merge(figures, results)
            Console().print(_table(module, figures))
    return status


def _measure(module: str) -> dict[str, float] | None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks.measure", module, str(target)]
        try:
            subprocess.run(command, timeout=LIMIT_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None  # the child's own error is on the screen
        figures: dict[str, float] = json.loads(target.read_text())
    return figures


def _merge(figures: dict[str, float], results: Path) -> None:
    """Keys of other groups stay; the machine's description is today's."""
    results.parent.mkdir(parents=True, exist_ok=True)
    before: dict[str, object] = json.loads(results.read_text()) if results.exists() else {}
    merged = before | figures | {"machine": describe(results.parent)}
    results.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n")


def _table(title: str, figures: dict[str, float]) -> Table:
    table = Table("key", "value", title=title)
    for key, value in figures.items():
        table.add_row(key, f"{value:.4g}")
    return table


if __name__ == "__main__":
    sys.exit(main())
