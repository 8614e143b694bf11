"""Signals: a save when asked, a save before leaving, nothing ever half-done; then the run ends like the undisturbed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.kills import same_run
from tests.support.tiny import Tiny

STEPS = 60
PARENT = ("--max-restarts", "5")


@pytest.fixture(scope="module")
def reference(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("signals") / "undisturbed"
    runs.ok("run", "--config", tiny.config(STEPS), "--run-dir", run)
    return run


def started(tiny: Tiny, folder: Path, *more: str) -> tuple[Path, subprocess.Popen[bytes]]:
    """A run under way, its first steps done."""
    run = folder / "run"
    process = runs.start("run", "--config", tiny.config(STEPS), "--run-dir", run, *more, log=folder / "log")
    runs.wait_for(lambda: runs.lines(run) > 12 or process.poll() is not None, 60, "the first steps")
    return run, process


def goes_on(run: Path, reference: Path) -> None:
    runs.ok("run", "--run-dir", run)
    same_run(run, reference)


@pytest.mark.parametrize("parent", [(), PARENT], ids=["alone", "with parent"])
def test_sigterm_saves_and_leaves_with_75(tiny: Tiny, reference: Path, tmp_path: Path, parent: tuple[str, ...]) -> None:
    run, process = started(tiny, tmp_path, *parent)
    child = runs.controller_pid(run)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 75
    log, facts = (tmp_path / "log").read_text(), runs.status(run)
    assert f"to go on: verl-core run --run-dir {run}" in log
    assert "restart" not in log
    assert 0 < int(str(facts["step"])) < STEPS
    assert facts["last_checkpoint_step"] == facts["step"]
    assert child is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    goes_on(run, reference)


def test_ctrl_c_saves_leaves_with_130_and_says_how_to_go_on(tiny: Tiny, reference: Path, tmp_path: Path) -> None:
    run, process = started(tiny, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert f"to go on: verl-core run --run-dir {run}" in (tmp_path / "log").read_text()
    facts = runs.status(run)
    assert facts["last_checkpoint_step"] == facts["step"]
    goes_on(run, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_spoils_nothing(
    tiny: Tiny, reference: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run, process = started(tiny, tmp_path)
    process.send_signal(number)
    runs.wait_for(lambda: "once more" in (tmp_path / "log").read_text(), 10, "the first to be heard")
    process.send_signal(number)
    assert process.wait(30) in (75, 130, -number)  # the first may have been quicker
    goes_on(run, reference)


def test_sigusr1_saves_at_once_and_the_run_goes_on(tiny: Tiny, reference: Path, tmp_path: Path) -> None:
    run, process = started(tiny, tmp_path, "--set", "training.fault_tolerance.checkpoint_interval_steps=1000")
    os.kill(int(str(runs.status(run)["pid"])), signal.SIGUSR1)
    assert process.wait(120) == 0
    log = runs.entries(run)
    saved = [e["payload"]["ref"]["step"] for e in log if e["event"] == "checkpoint_committed"]  # type: ignore[index]
    asked = [e["payload"]["step"] for e in log if e["event"] == "save"]  # type: ignore[index]
    assert (len(asked), saved) == (1, [*asked, STEPS])
    assert asked[0] < STEPS
    same_run(run, reference)
