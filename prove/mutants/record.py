"""What a seeded defect is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect in one file, and the tests that are named for the behaviour that it breaks: one of them must fail."""

    name: str
    file: str  # below the root of the repository
    before: str  # stands exactly once in the file
    after: str
    tests: tuple[str, ...]  # "tests/unit/test_x.py::test_name"
    why: str  # what would happen to a run
    also: tuple[tuple[str, str], ...] = ()  # more places of the same defect in the same file

    @property
    def edits(self) -> tuple[tuple[str, str], ...]:
        return ((self.before, self.after), *self.also)
