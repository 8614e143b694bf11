"""``python -m prove [--seed N] [--only GROUP]``: the long proofs, one after another; prints a table, writes
``build/prove.json``. Leaves with 1 when the promise was broken somewhere, or a seeded defect was not noticed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

GROUPS = {  # seconds
    "crash_states": 600.0,
    "simulation": 100.0,
    "points": 90.0,
    "kills": 270.0,
    "s3": 200.0,
    "mutants": 500.0,
}
RESULTS = Path("build/prove.json")
LISTS = ("violations", "survivors")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m prove", description="Prove the promise; write build/prove.json.")
    parser.add_argument("--seed", type=int, default=0, help="decides everything that is drawn")
    parser.add_argument("--only", choices=GROUPS, help="one group")
    arguments = parser.parse_args()
    begin = time.monotonic()
    figures: dict[str, object] = {"seed": arguments.seed}
    broken: dict[str, list[str]] = {name: [] for name in LISTS}
    for group in [arguments.only] if arguments.only else GROUPS:
        print(f"{group} …", file=sys.stderr, flush=True)
        found = importlib.import_module(f"prove.{group}").prove(arguments.seed, GROUPS[group])
        for name in LISTS:
            broken[name] += found.pop(name, [])
        figures |= found
        figures |= {"violations": len(broken["violations"]), "seconds": round(time.monotonic() - begin, 1)}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({**figures, "broken": broken}, indent=2, sort_keys=True) + "\n")
    Console().print(_table(figures))
    for name, texts in broken.items():
        print("\n".join(f"{name[:-1]}: {text}" for text in texts), end="\n" if texts else "")
    return 1 if any(broken.values()) else 0


def _table(figures: dict[str, object]) -> Table:
    table = Table("what", "figure", title="proofs")
    for key, value in figures.items():
        table.add_row(key, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
