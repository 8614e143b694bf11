"""Seeded defects in the safety-relevant code, each with the tests that are named for it: one of them must fail.

``python -m prove.mutants [--only NAME]`` tries them out, each alone, in a copy of the sources. A defect that no test
notices is a hole in the tests: it survives.
"""

from __future__ import annotations

from . import batches, checkpoints, inputs, journal, objects, running, saving, starts, storing
from .check import Result, check
from .record import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *storing.MUTANTS,
    *batches.MUTANTS,
    *checkpoints.MUTANTS,
    *journal.MUTANTS,
    *running.MUTANTS,
    *saving.MUTANTS,
    *inputs.MUTANTS,
    *objects.MUTANTS,
    *starts.MUTANTS,
)

__all__ = ["MUTANTS", "Mutant", "prove"]


def prove(seed: int, budget_s: float) -> dict[str, int | list[str]]:
    """``mutants_total``, ``mutants_caught`` and the ``survivors``; what is not tried in time (seconds) is one.

    ``seed`` has no say: a defect is caught each time. Raises AssertionError when the tests fail by themselves.
    """
    results = check(MUTANTS, budget_s, lambda _: None)
    return {
        "mutants_total": len(results),
        "mutants_caught": sum(result.caught for result in results),
        "survivors": [describe(result) for result in results if not result.caught],
    }


def describe(result: Result) -> str:
    """A line for a mutant that was caught, with what its test found; for another with what pytest said."""
    mutant, trial = result.mutant, result.trial
    line = f"{'caught' if result.caught else 'SURVIVED':8} {mutant.name} ({result.seconds:.1f} s)"
    if trial is None:
        return f"{line}: not tried in time; {mutant.why}"
    if not result.caught:
        return f"{line}: {trial.outcome}; {mutant.why}\n{trial.text}"
    found = next((text[1:].strip() for text in trial.text.splitlines() if text.startswith("E ")), "")
    return f"{line}: {found[:90]}"
