"""Crash points: off they do nothing, armed they kill at the chosen pass."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from verl_core.testing import crash
from verl_core.testing.faulty import killed_at

CODE = "from verl_core.testing import crash; [crash.point(name) for name in 'abab']; print('alive')"


@pytest.mark.parametrize(
    ("plan", "killed"), [("", False), ("a:2", True), ("a:3", False), ("*:4", True), ("*:5", False), ("c:1", False)]
)
def test_the_plan_of_the_environment_names_the_point_and_the_pass(plan: str, killed: bool) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], env={"VERL_CORE_CRASH": plan}, capture_output=True, timeout=60)
    assert (done.returncode == -signal.SIGKILL) == killed
    assert (b"alive" in done.stdout) != killed


def test_an_operation_is_killed_at_its_nth_point_or_ends() -> None:
    def operation() -> None:
        crash.point("a")
        crash.point("b")

    assert [killed_at(n, operation) for n in (1, 2, 3)] == [True, True, False]


def test_an_operation_that_fails_by_itself_is_not_taken_for_killed() -> None:
    with pytest.raises(AssertionError, match="failed by itself"):
        killed_at(1, lambda: 1 / 0)
