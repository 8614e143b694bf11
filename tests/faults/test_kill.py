"""The promise: kill the controller at any moment, start it again, and get the run that was never disturbed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.kills import killed_at_random
from tests.support.tiny import Tiny

STEPS = 90
KILLS = 20


def same_run(run: Path, reference: Path) -> None:
    """Equal policies, batches, prompt order and rewards, and a clean audit."""
    got, want = runs.status(run), runs.status(reference)
    for fact in ("state", "step", "policy_digest", "reward_mean", "prompts_consumed", "batches_committed"):
        assert got[fact] == want[fact], fact
    assert runs.batches(run) == runs.batches(reference)
    assert runs.prompt_order(run) == runs.prompt_order(reference)
    assert runs.generated_though_committed(run) == []
    assert runs.ok("verify", run).endswith("clean\n")


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tiny: Tiny, tmp_path: Path) -> None:
    config, run, reference = tiny.config(STEPS), tmp_path / "run", tmp_path / "reference"
    runs.ok("run", "--config", config, "--run-dir", reference)
    kills = killed_at_random(config, run, tmp_path / "log", random.Random(11), at_most=200)
    assert kills >= KILLS, "too few to say anything: make the run longer"
    same_run(run, reference)


def test_a_cold_start_after_a_kill_goes_on(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    config, run = tiny.config(8), tmp_path / "run"
    process = runs.start("run", "--config", config, "--run-dir", run, log=tmp_path / "log")
    runs.wait_for(lambda: len(runs.batches(run)) >= 7 or process.poll() is not None, 60, "seven batches")
    process.kill()
    process.wait()
    out = runs.ok("run", "--config", config, "--run-dir", run)
    assert "goes on after step" in out
    same_run(run, undisturbed)


def test_a_finished_run_started_again_changes_nothing(undisturbed: Path, tiny: Tiny) -> None:
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in undisturbed.rglob("*") if p.is_file()}
    out = runs.ok("run", "--config", tiny.config(8), "--run-dir", undisturbed)
    assert "done at step 8" in out
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in undisturbed.rglob("*") if p.is_file()} == before


def test_a_second_controller_is_refused_while_the_first_lives(tiny: Tiny, tmp_path: Path) -> None:
    config, run = tiny.config(500), tmp_path / "run"
    process = runs.start("run", "--config", config, "--run-dir", run, log=tmp_path / "log")
    try:
        runs.wait_for(lambda: runs.batches(run) or process.poll() is not None, 60, "the first batch")
        second = runs.cli("run", "--config", config, "--run-dir", run)
        assert (second.code, str(process.pid) in second.err) == (3, True)
        assert runs.status(run)["pid"] == process.pid
    finally:
        process.kill()
        process.wait()


def test_until_step_in_pieces_is_the_same_run(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (1, 3, 4, 7, 8):
        result = tiny.trainer(run, 8).run(until_step=step)
        assert result.step == step
        assert runs.status(run)["last_checkpoint_step"] == step
    same_run(run, undisturbed)
