"""The command line as people use it: places, plugins, options, and what they print."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import orjson
import pytest

from tests.support import runs
from tests.support.tiny import Tiny


def test_a_run_in_several_places_is_found_and_audited(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    """Relative run folder, batches, checkpoints and state log elsewhere, plugins by name, keys pasted after run."""
    places = {
        "rollout_storage_uri": tmp_path / "rollouts",
        "storage.checkpoint_uri": tmp_path / "saves",
        "training.fault_tolerance.state_log_path": tmp_path / "logs" / "state_log.jsonl",
    }
    pasted = [f"{key}={place}" for key, place in places.items()]
    base = ("--config", tiny.config(8), "--plugins", "local,fsdp", "--plugins", "hf")
    here = os.path.relpath(tmp_path / "run")
    runs.ok("run", *base, "--run-dir", here, "--until-step", "5", *pasted)
    out = runs.ok("run", *base, "--run-dir", f"file://{tmp_path}/run", *pasted)
    assert "goes on after step 5" in out
    facts = json.loads(runs.ok("status", f"file://{tmp_path}/run", "--json"))
    want = runs.status(undisturbed)
    assert {k: facts[k] for k in ("step", "policy_digest", "reward_mean")} == {
        k: want[k] for k in ("step", "policy_digest", "reward_mean")
    }
    assert runs.ok("verify", here).endswith("clean\n")
    assert (tmp_path / "saves" / "step_000008" / "SUCCESS").exists()
    other = runs.cli("run", *base, "--run-dir", tmp_path / "other", *pasted)
    assert other.code == 2, "another run must not share the prefixes"
    assert "belongs to" in other.err


def test_status_has_the_promised_facts(undisturbed: Path) -> None:
    facts = runs.status(undisturbed)
    wanted = "state step total_steps policy_digest prompts_consumed reward_mean last_checkpoint_step batches_committed"
    assert {*wanted.split(), "faults", "safe_mode", "pid"} <= set(facts)
    assert (facts["state"], facts["step"], facts["total_steps"], facts["pid"]) == ("DONE", 8, 8, None)
    assert len(facts["reward_mean"]) == 8  # type: ignore[arg-type]
    shown = runs.ok("status", undisturbed)
    assert "8 of 8" in shown
    assert str(facts["policy_digest"])[:30] in shown


@pytest.mark.parametrize("command", ["status", "verify"])
def test_a_folder_without_a_run_is_an_error_that_says_so(tmp_path: Path, command: str) -> None:
    result = runs.cli(command, tmp_path)
    assert (result.code, "no run here" in result.err) == (2, True)


def test_a_dry_run_prints_the_resolved_config_and_writes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("--run-dir", run, "--dry-run", "--set", "rollout.temperature=0.7")
    out = runs.ok("run", "--config", tiny.config(8), *arguments)
    assert "temperature: 0.7" in out
    assert not run.exists()
    assert "total_steps: 100" in runs.ok("quickstart", "--run-dir", run, "--dry-run")
    assert not run.exists()


def test_quickstart_killed_while_it_makes_its_model_begins_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = runs.start("quickstart", "--run-dir", run, log=tmp_path / "log")
    runs.wait_for(lambda: run.exists() or process.poll() is not None, 60, "the run folder")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    out = runs.ok("quickstart", "--run-dir", run, "--until-step", "2")
    assert "stopped at step 2" in out
    assert runs.ok("verify", run).endswith("clean\n")
    assert [p.name for p in run.iterdir() if "draft" in p.name] == []


def test_a_checkpoint_holds_what_an_auditor_looks_for(undisturbed: Path) -> None:
    """E2: hashes of everything, the runtime state, the schema; readable by the usual libraries."""
    from safetensors.numpy import load_file

    step = undisturbed / "checkpoints" / "step_000008"
    summary = orjson.loads((step / "checkpoint_summary.json").read_bytes())
    assert summary["step"] == 8
    for name in ("model_hash", "optimizer_hash", "rng_state_hash"):
        assert str(summary[name]).startswith("blake3:"), name
    on_disk = {str(p.relative_to(step)) for p in step.rglob("*") if p.is_file()}
    assert on_disk - set(summary["files"]) == {"checkpoint_summary.json", "SUCCESS"}
    shards = sorted((step / "actor").glob("*.safetensors"))
    assert sum(len(load_file(shard)) for shard in shards) > 10
    assert {"runtime_state.msgpack.zst", "config.yaml", "schema_version.json", "scheduler.json"} <= on_disk


def test_c03_one_kept_checkpoint_is_enough_to_go_on(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny.trainer(run, 8, ["storage.keep_checkpoints=1"]).run(until_step=5)
    assert [p.name for p in (run / "checkpoints").glob("step_*")] == ["step_000005"]
    result = tiny.trainer(run, 8, ["storage.keep_checkpoints=1"]).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]


def test_resume_from_an_older_checkpoint_by_step_gives_the_same_run(
    tiny: Tiny, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    tiny.trainer(run, 8).run(until_step=7)
    result = tiny.trainer(run, 8, resume="4").run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.generated_though_committed(run) == []
    replayed = [e["payload"]["replayed"] for e in runs.entries(run) if e["event"] == "train_step_done"]  # type: ignore[index]
    assert replayed == [False] * 7 + [True] * 3 + [False]
    wrong = runs.cli("run", "--config", tiny.config(8), "--run-dir", run, "--resume", "3")
    assert (wrong.code, "no committed checkpoint" in wrong.err) == (2, True)


def test_more_steps_go_on_where_a_finished_run_stands(tiny: Tiny, tmp_path: Path) -> None:
    run, longer = tmp_path / "run", tmp_path / "longer"
    tiny.trainer(run, 5).run()
    result = tiny.trainer(run, 8).run()
    assert result.policy_digest == tiny.trainer(longer, 8).run().policy_digest


def test_c16_metrics_of_a_run_resumed_three_times_are_one_curve(tiny: Tiny, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (2, 5, 7):
        tiny.trainer(run, 8).run(until_step=step)
    shutil.rmtree(run / "checkpoints" / "step_000007")
    tiny.trainer(run, 8).run()
    facts = runs.status(run)
    assert len(facts["reward_mean"]) == 8  # type: ignore[arg-type]
    assert all(reward is not None for reward in facts["reward_mean"])  # type: ignore[attr-defined]
