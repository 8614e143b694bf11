"""The promise: kill the controller at any moment, start it again, and get the run that was never disturbed.

Each test runs on the local disk and on a real S3 server; the undisturbed run is on the local disk.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.services.fixtures import place
from tests.support import runs
from tests.support.kills import killed_at_random, same_run
from tests.support.tiny import Tiny

STEPS = 90
KILLS = 20


@pytest.fixture(params=["local", "s3"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a run of this test alone lies."""
    if request.param == "local":
        return tmp_path / "run"
    request.getfixturevalue("s3_env")
    return place()


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tiny: Tiny, tmp_path: Path, run: Path | str) -> None:
    local = isinstance(run, Path)
    steps, at_least = (STEPS, KILLS) if local else (STEPS // 2, 5)  # `make prove` does more
    reference, log, dice = tmp_path / "reference", tmp_path / "log", random.Random(11)
    runs.ok("run", "--config", tiny.config(steps), "--run-dir", reference)
    at_most, lines, patience_s = (200, 40, 2.0) if local else (10, 40, 5.0)
    config = tiny.config(steps, run)
    kills = killed_at_random(config, run, log, dice, lines=lines, at_most=at_most, patience_s=patience_s)
    assert kills >= at_least, "too few to say anything: make the run longer"
    same_run(run, reference)


def test_a_cold_start_after_a_kill_goes_on(tiny: Tiny, undisturbed: Path, tmp_path: Path, run: Path | str) -> None:
    config = tiny.config(8, run)
    process = runs.start("run", "--config", config, "--run-dir", run, log=tmp_path / "log")
    runs.wait_for(lambda: len(runs.batches(run)) >= 7 or process.poll() is not None, 60, "seven batches")
    process.kill()
    process.wait()
    out = runs.ok("run", "--config", config, "--run-dir", run)
    assert "goes on after step" in out
    same_run(run, undisturbed)


def test_a_finished_run_started_again_changes_nothing(tiny: Tiny, run: Path | str) -> None:
    def left() -> dict[str, tuple[float, bytes]]:
        storage = runs.storage(run)
        return {stat.path: (stat.mtime, storage.get(stat.path)) for stat in storage.list()}

    tiny.trainer(run, 8).run()
    before = left()
    assert "done at step 8" in runs.ok("run", "--config", tiny.config(8, run), "--run-dir", run)
    assert left() == before


def test_a_second_controller_is_refused_while_the_first_lives(tiny: Tiny, tmp_path: Path, run: Path | str) -> None:
    config = tiny.config(500, run)
    process = runs.start("run", "--config", config, "--run-dir", run, log=tmp_path / "log")
    try:
        runs.wait_for(lambda: runs.batches(run) or process.poll() is not None, 60, "the first batch")
        second = runs.cli("run", "--config", config, "--run-dir", run)
        assert (second.code, str(process.pid) in second.err) == (3, True)
        assert runs.status(run)["pid"] == process.pid
    finally:
        process.kill()
        process.wait()


def test_until_step_in_pieces_is_the_same_run(tiny: Tiny, undisturbed: Path, tmp_path: Path, run: Path | str) -> None:
    for step in (1, 3, 4, 7, 8):
        result = tiny.trainer(run, 8).run(until_step=step)
        assert result.step == step
        assert runs.status(run)["last_checkpoint_step"] == step
    same_run(run, undisturbed)
