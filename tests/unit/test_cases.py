"""The page of cases is true: every case has tests that carry its number, and every test that is named is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cases.md").read_text()
CASES = [f"C{number:02d}" for number in range(1, 18)]
SECTIONS = dict(re.findall(r"^## (C\d\d)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def listed(case: str) -> list[tuple[str, str]]:
    """(file, test) of a case, as the page has them."""
    found = []
    for file, names in re.findall(r"^- `(tests/[\w/]+\.py)`:((?:\s+`\w+`,?)+)$", SECTIONS[case], re.MULTILINE):
        found += [(file, name) for name in re.findall(r"`(\w+)`", names)]
    return found


def test_every_case_has_its_section() -> None:
    assert list(SECTIONS) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_tests_that_are_there_and_carry_its_number(case: str) -> None:
    named = listed(case)
    assert SECTIONS[case].count("`test_") == len(named), "a line of tests that cannot be read"
    for file, name in named:
        assert name in functions_of(file), f"{file}::{name} is not there: was it renamed?"
    assert [name for _, name in named if re.match(rf"test_(c\d\d_)*{case.lower()}_", name)] != []


def test_no_test_carries_the_number_of_an_unknown_case() -> None:
    numbers = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for name in functions_of(str(file.relative_to(ROOT))):
            if match := re.match(r"test_((?:c\d\d_)+)", name):
                numbers |= {f"C{number}" for number in re.findall(r"c(\d\d)_", match[1])}
    assert numbers <= set(CASES)
