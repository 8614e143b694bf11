"""One defect at a time in a copy of the sources: do the tests that are named for it fail?"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from .record import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("core", "plugins", "configs", "tests", "prove", "pyproject.toml")
SOURCES = ("core", *(f"plugins/{family}" for family in ("storage", "engines", "recovery", "monitoring")))
LIMIT_S = 120.0  # of one trial
TEST_LIMIT_S = 40  # of one test: a defect that makes it hang is caught, too

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "trial_guard", f"--timeout={TEST_LIMIT_S}")

Outcome = Literal["passed", "failed", "broken"]

# Loaded by the trial's pytest: what is tested must be the copy.
GUARD = """
import importlib, os
import pytest

def pytest_sessionstart(session):
    for name in ("verl_core", "verl_core_storage", "verl_core_engines", "verl_core_recovery", "tests"):
        found = os.path.realpath(importlib.import_module(name).__file__)
        if not found.startswith(os.getcwd() + os.sep):
            pytest.exit(f"{name} is imported from {found}", returncode=3)
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """``broken``: the tests could not be run, which says nothing of the defect."""

    outcome: Outcome
    text: str  # what pytest said


class Copy:
    """A copy of what tests need, in a folder of its own, so that a defect never touches the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        ignored = shutil.ignore_patterns("__pycache__")
        for name in COPIED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy2(source, target)
        (self.folder / "trial_guard.py").write_text(GUARD)

    def run(self, tests: Sequence[str], *, limit_s: float = LIMIT_S, compiled: bool = True) -> Trial:
        """Run tests in a process of their own. ``compiled``: keep what is compiled for later calls."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.folder / source) for source in (".", *SOURCES)),
            "PYTHONDONTWRITEBYTECODE": "" if compiled else "1",
            "OMP_NUM_THREADS": "1",
            "CI": "1",  # hypothesis: the same examples each time
        }
        report, said = self.folder / "report.xml", self.folder / "said.txt"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *OPTIONS, f"--junitxml={report}", "--basetemp=scratch", *tests]
        with said.open("w") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = 1  # when it wrote its report, only threads that hang keep it
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it left behind
                process.wait()
        return Trial(_outcome(code, report), said.read_text()[-3000:])

    def try_out(self, mutant: Mutant) -> Trial:
        """Run the tests of a mutant with its defect in place, and take it out again."""
        file = self.folder / mutant.file
        sound, times = file.read_text(), file.stat()
        try:
            file.write_text(mutated(mutant, sound))
            return self.run(mutant.tests, compiled=False)
        except ValueError as stale:
            return Trial("broken", str(stale))
        finally:
            file.write_text(sound)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled of it is good again


def mutated(mutant: Mutant, source: str) -> str:
    """The damaged source. Raises ValueError when a place of the defect is not there exactly once."""
    for before, after in mutant.edits:
        if source.count(before) != 1:
            raise ValueError(f"{mutant.name}: {source.count(before)} times in {mutant.file}:\n{before}")
        source = source.replace(before, after)
    return source


def _outcome(code: int, report: Path) -> Outcome:
    """A test that ran and failed is told from one that could not be collected or set up."""
    if code == 0:
        return "passed"
    if code != 1 or not report.exists():
        return "broken"
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    return "failed" if any(int(suite.get("failures", 0)) for suite in suites) else "broken"
