"""Whole runs on a real S3 server, as a user starts them. Kills are in ``tests/faults/test_kill.py``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.services.fixtures import place
from tests.services.seaweed import Seaweed
from tests.support import runs
from tests.support.kills import same_run
from tests.support.tiny import Tiny


@pytest.mark.slow
def test_the_demo_on_s3_is_the_demo_on_the_local_disk(s3_env: Seaweed, tmp_path: Path) -> None:
    at, few = place(), ("--set", "total_steps=6")
    runs.ok("quickstart", "--plugins", "s3,fsdp,hf", "--run-dir", at, *few)
    runs.ok("quickstart", "--run-dir", tmp_path / "run", *few)
    same_run(at, tmp_path / "run")


@pytest.mark.slow
def test_of_two_controllers_one_frozen_and_woken_later_one_wins(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, s3_env: Seaweed
) -> None:
    run = place()
    command = ("run", "--config", tiny.config(8, run), "--run-dir", run)
    first = runs.start(*command, log=tmp_path / "log")
    try:
        runs.wait_for(lambda: len(runs.batches(run)) >= 3 or first.poll() is not None, 60, "three batches")
        os.kill(first.pid, signal.SIGSTOP)
        refused = runs.cli(*command)
        assert (refused.code, str(first.pid) in refused.err) == (3, True)
        runs.ok(*command, "--take-over")
        os.kill(first.pid, signal.SIGCONT)
        assert first.wait(60) == 3
        assert "another controller took over" in (tmp_path / "log").read_text()
    finally:
        first.kill()
        first.wait()
    same_run(run, undisturbed)
