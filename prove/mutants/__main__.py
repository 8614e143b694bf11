"""``python -m prove.mutants [--only NAME]``: try out seeded defects; exit code 1 when one survives."""

from __future__ import annotations

import argparse
import time

from . import MUTANTS, describe
from .check import check


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m prove.mutants", description="Try out seeded defects.")
    parser.add_argument("--only", metavar="NAME", action="append", help="those whose names begin like this; repeatable")
    parser.add_argument("--list", action="store_true", help="their names, files and consequences")
    arguments = parser.parse_args()
    wanted = tuple(arguments.only or ("",))
    mutants = [mutant for mutant in MUTANTS if mutant.name.startswith(wanted)]
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name:34} {mutant.file:48} {mutant.why}")
        return 0
    begin = time.monotonic()
    results = check(mutants, 3600.0, lambda result: print(describe(result), flush=True))
    caught = sum(result.caught for result in results)
    print(f"{caught} of {len(results)} caught in {time.monotonic() - begin:.0f} s")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
