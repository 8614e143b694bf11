"""Made data sets: the same rows in every process, and plain words for a wrong task."""

from __future__ import annotations

import sys

import pytest
from verl_core.data.procedural import make_rows
from verl_core.errors import DataError


@pytest.mark.parametrize("name", ["word_ladder", "list_functions"])  # set order; the global random state
def test_rows_do_not_depend_on_the_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        made.append(make_rows(f"reasoning_gym:{name}", {}, 6, 11))
    assert made[0] == made[1]
    assert len(made[0][0]) == 6


def test_a_longer_data_set_begins_with_the_rows_of_a_shorter_one() -> None:
    short, mark = make_rows("reasoning_gym:gcd", {}, 3, 0)
    long, other = make_rows("reasoning_gym:gcd", {}, 6, 0)
    assert long[:3] == short
    assert mark.digest != other.digest
    assert "gcd" in mark.entries[0].name


@pytest.mark.parametrize(
    ("task", "options", "reason"),
    [
        ("gcd", {}, "not a task"),
        ("reasoning_gym:", {}, "not a task"),
        ("reasoning_gym:gdc", {}, "did you mean gcd"),
        ("reasoning_gym:gcd", {"min_number": 3}, "min_number"),
        ("reasoning_gym:gcd", {"min_value": 9, "max_value": 1}, "cannot be made"),
    ],
)
def test_a_wrong_task_is_one_line(task: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        make_rows(task, options, 2, 0)
    assert caught.value.where == task
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # no distribution is found
    with pytest.raises(DataError, match="pip install"):
        make_rows("reasoning_gym:gcd", {}, 2, 0)
