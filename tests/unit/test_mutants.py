"""The seeded defects are fit to be tried out: each has its one place in today's code, and tests that are there."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from prove.mutants import MUTANTS, Mutant, describe
from prove.mutants.check import Result, check
from prove.mutants.trial import ROOT, mutated

LEAST = 100  # the list grows


@cache
def source(file: str) -> str:
    return (ROOT / file).read_text()


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse(source(file))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_has_one_place_and_tests_that_are_there(mutant: Mutant) -> None:
    damaged = mutated(mutant, source(mutant.file))
    assert damaged != source(mutant.file)
    compile(damaged, mutant.file, "exec")
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name in functions_in(file), f"{test} is not there: was it renamed?"


def test_defects_have_names_of_their_own_and_say_what_they_would_cost() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert [mutant.name for mutant in MUTANTS if not mutant.why] == []
    assert len(MUTANTS) >= LEAST


# --- the trial itself -------------------------------------------------------------------------

RETENTION = "core/verl_core/checkpoint/retention.py"
OLDEST = "tests/unit/test_retention.py::test_what_is_beyond_the_newest_goes_oldest_first"
CASES = {
    "caught": Mutant("caught", RETENTION, "reverse=True)", "reverse=False)", (OLDEST,), "why"),
    "harmless": Mutant("harmless", RETENTION, "reverse=True)", "reverse=bool(1))", (OLDEST,), "why"),
    "no code": Mutant("no code", RETENTION, "reverse=True)", "reverse=(", (OLDEST,), "why"),
    "moved": Mutant("moved", RETENTION, "no such place", "", (OLDEST,), "why"),
}


@pytest.mark.slow
def test_only_a_test_that_ran_and_failed_counts_as_caught() -> None:
    """A defect that nothing notices, that cannot be imported or has no place any more is a survivor."""
    before = source(RETENTION)
    told: list[str] = []
    results = check(list(CASES.values()), 300.0, lambda result: told.append(describe(result)))
    found = {result.mutant.name: result.trial.outcome for result in results if result.trial is not None}
    assert found == {"caught": "failed", "harmless": "passed", "no code": "broken", "moved": "broken"}
    assert [result.mutant.name for result in results if result.caught] == ["caught"]
    assert sum(line.startswith("SURVIVED") for line in told) == 3
    assert Path(ROOT / RETENTION).read_text() == before, "the repository is never touched"


def test_what_was_not_tried_in_time_is_no_success() -> None:
    result = Result(CASES["caught"], None)
    assert not result.caught
    assert "not tried in time" in describe(result)


@pytest.mark.slow
def test_tests_that_fail_by_themselves_stop_the_check() -> None:
    missing = Mutant("x", RETENTION, "reverse=True)", "", ("tests/unit/test_retention.py::test_of_nothing",), "why")
    with pytest.raises(AssertionError, match="without a defect: broken"):
        check([missing], 300.0, lambda result: None)
