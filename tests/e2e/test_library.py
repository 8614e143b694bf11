"""The library: the same job as the command line, in about ten lines, and own code at each step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import verl_core
from verl_core.errors import VerlError

from tests.support import runs
from tests.support.tiny import Tiny


def test_importing_loads_no_heavy_library() -> None:
    code = (
        "import sys, verl_core, verl_core.api, verl_core.cli.main\n"
        "heavy = {'torch', 'transformers', 'ray', 'boto3', 'botocore', 'datasets', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)), verl_core.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", verl_core.__version__]


def test_backends_are_listed_without_loading_them() -> None:
    assert {"core", "local", "fsdp", "hf", "inline", "retry", "log"} <= set(verl_core.get_available_backends())


def test_a_trainer_runs_the_same_job_and_calls_own_code_at_each_step(
    tiny: Tiny, undisturbed: Path, tmp_path: Path
) -> None:
    trainer = tiny.trainer(tmp_path / "run", 8)
    assert not (tmp_path / "run").exists(), "nothing is written before run"
    seen: list[int] = []

    def look(result: object) -> None:
        seen.append(result.step)  # type: ignore[attr-defined]
        if result.step == 3:  # type: ignore[attr-defined]
            trainer.save_checkpoint()

    def broken(result: object) -> None:
        raise ValueError("a mistake in own code")

    trainer.on("step_finished", look)
    trainer.on("step_finished", broken)
    result = trainer.run()
    assert seen == list(range(1, 9))
    assert [m["step"] for m in trainer.metrics] == seen
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    commits = [e["payload"] for e in runs.entries(tmp_path / "run") if e["event"] == "checkpoint_committed"]
    assert 3 in [payload["ref"]["step"] for payload in commits]  # type: ignore[index]
    assert trainer.config.total_steps == 8


def test_saving_without_a_run_is_an_error_that_says_where_to_call_it(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(VerlError, match="nothing is running"):
        tiny.trainer(tmp_path / "run", 8).save_checkpoint()


def test_evaluation_is_journalled_at_its_interval(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    overrides = [f"data.val_files=[{tiny.data}]", "training.eval_interval_steps=3"]
    result = tiny.trainer(tmp_path / "run", 8, overrides).run()
    evals = {
        e["payload"]["step"]: e["payload"]["reward_mean"]  # type: ignore[index]
        for e in runs.entries(tmp_path / "run")
        if e["event"] == "eval_done"
    }
    assert [step for step, reward in evals.items() if reward is not None] == [3, 6, 8]
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"], "looking does not change what is seen"


def test_without_fault_tolerance_the_policy_is_the_same_and_only_the_last_save_is_made(
    tiny: Tiny, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = tiny.trainer(run, 8, ["training.fault_tolerance.enabled=false"]).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert (runs.batches(run), runs.status(run)["last_checkpoint_step"]) == ({}, 8)
    assert [p.name for p in sorted((run / "checkpoints").glob("step_*"))] == ["step_000008"]


def test_a_checkpoint_is_named_by_its_path_wherever_checkpoints_lie(tiny: Tiny, tmp_path: Path) -> None:
    overrides = [f"storage.checkpoint_uri={tmp_path}/saves"]
    tiny.trainer(tmp_path / "run", 8, overrides).run(until_step=4)
    named = tiny.trainer(tmp_path / "run", 8, overrides, resume=f"{tmp_path}/saves/step_000002")
    started: list[int] = []
    named.on("run_started", lambda run_id, attempt, step: started.append(step))
    assert (named.run().step, started) == (8, [2])


def test_the_learning_rate_ends_with_the_epochs_where_they_end_the_run(tiny: Tiny, tmp_path: Path) -> None:
    short = tiny.trainer(tmp_path / "run", 100, ["total_epochs=1", "training.optim.schedule=linear"])
    rates: list[float] = []
    short.on("step_finished", lambda result: rates.append(result.metrics.lr))
    short.run()
    assert len(rates) == short.total_steps < 100
    assert rates[-1] < rates[0] / 2
