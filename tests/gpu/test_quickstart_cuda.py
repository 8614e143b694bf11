"""The quickstart on CUDA under deterministic kernels, killed twice: the same run in the end. Under eight minutes.

``python -m pytest tests/gpu -s`` prints the figures for ``docs/gpu.md``. Skipped where no CUDA device is.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from pathlib import Path

import pytest

from tests.support import runs

STEPS = 60
KILL_AT = (15, 35)  # committed batches


def quickstart(run: Path) -> list[str]:
    options = ["training.device=cuda", f"total_steps={STEPS}"]
    return ["quickstart", "--run-dir", str(run), *(part for o in options for part in ("--set", o))]


@pytest.mark.gpu
def test_a_run_on_cuda_that_is_killed_twice_ends_like_the_undisturbed_one(tmp_path: Path) -> None:
    reference, run = tmp_path / "reference", tmp_path / "run"
    runs.ok(*quickstart(reference))
    for batches in KILL_AT:
        process = runs.start(*quickstart(run), log=tmp_path / "log")
        runs.wait_for(
            lambda process=process, batches=batches: len(runs.batches(run)) >= batches or process.poll() is not None,
            120,
            f"{batches} batches",
        )
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    runs.ok(*quickstart(run))
    got, want = runs.status(run), runs.status(reference)
    steps = [e["payload"]["result"]["seconds"] for e in runs.entries(reference) if e["event"] == "train_step_done"]  # type: ignore[index]
    platform = next(e["payload"]["platform"] for e in runs.entries(reference) if e["event"] == "prepared")  # type: ignore[index]
    figures = {"platform": platform, "update_s": statistics.median(steps), "digest": want["policy_digest"]}
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    assert platform["machine"].startswith(("NVIDIA", "AMD"))
    assert got["policy_digest"] == want["policy_digest"]
    assert got["reward_mean"] == want["reward_mean"]
    assert runs.batches(run) == runs.batches(reference)
    assert runs.ok("verify", run).endswith("clean\n")
