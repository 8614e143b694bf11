from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.config import Config, load_config
from verl_core.config.constraints import check_constraints
from verl_core.config.findings import Finding

GOOD = ("model.actor.path=/m", "data.train_files=[/d.jsonl]")


def findings(*overrides: str) -> list[Finding]:
    return check_constraints(load_config(None, [*GOOD, *overrides]))


def test_the_defaults_satisfy_all_constraints() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    "override",
    [
        "total_steps=0",
        "total_epochs=0",
        "data.task_size=0",
        "data.max_prompt_length=0",
        "data.max_response_length=0",
        "data.overlong_prompts=cut",
        "data.chat_template=always",
        "model.actor.dtype=float64",
        "model.actor.hybrid_engine.snapshot_interval_steps=0",
        "rollout.prompts_per_batch=0",
        "rollout.n=0",
        "rollout.n=1",
        "rollout.temperature=-0.1",
        "rollout.temperature=.nan",
        "rollout.top_p=0",
        "rollout.top_p=1.1",
        "rollout.top_k=-1",
        "rollout.max_num_seqs=-1",
        "training.prompts_per_step=0",
        "training.micro_batch_size=-1",
        "training.eval_interval_steps=-1",
        "training.runtime_interval_steps=0",
        "training.device=tpu",
        "training.threads=0",
        "training.optim.lr=0",
        "training.optim.eps=0",
        "training.optim.grad_clip=0",
        "training.optim.weight_decay=-1",
        "training.optim.warmup_steps=-1",
        "training.optim.betas=[0.9]",
        "training.optim.betas=[0.9, 1.0]",
        "training.optim.schedule=step",
        "training.fault_tolerance.rollout_retry_times=-1",
        "training.fault_tolerance.rollout_timeout_sec=0",
        "training.fault_tolerance.train_timeout_sec=.inf",
        "training.fault_tolerance.eval_timeout_sec=-1",
        "training.fault_tolerance.prepare_timeout_sec=0",
        "training.fault_tolerance.checkpoint_interval_steps=0",
        "training.fault_tolerance.adaptive_checkpoint.intervals=[{steps: 1, interval: 5}]",
        "training.fault_tolerance.adaptive_checkpoint.intervals=[{steps: 0, interval: 5}, {steps: 0, interval: 6}]",
        "training.fault_tolerance.adaptive_checkpoint.intervals=[{steps: 0, interval: 5}, {steps: -1, interval: 0}]",
        "training.fault_tolerance.adaptive_checkpoint.intervals=[{steps: 0, interval: 0}]",
        "training.fault_tolerance.max_checkpoint_age_sec=-1",
        "training.fault_tolerance.high_gpu_memory_fraction=95",
        "training.fault_tolerance.adaptive_checkpoint.volatility_window=1",
        "training.fault_tolerance.adaptive_checkpoint.volatility_threshold=0",
        "training.fault_tolerance.adaptive_checkpoint.milestone_loss_drop=-0.1",
        "training.fault_tolerance.adaptive_checkpoint.milestone_kl=0",
        "training.fault_tolerance.severity_thresholds.rollout_lost_fraction=0",
        "training.fault_tolerance.severity_thresholds.rollout_lost_fraction=33",
        "training.fault_tolerance.severity_thresholds.train_nodes_lost=0",
        "training.fault_tolerance.severity_thresholds.node_lost_sec=0",
        "training.fault_tolerance.severity_thresholds.rollout_storage_down_sec=0",
        "training.fault_tolerance.severity_thresholds.checkpoint_storage_down_sec=-1",
        "training.fault_tolerance.severity_thresholds.oom_per_window=0",
        "training.fault_tolerance.severity_thresholds.retries_per_window=0",
        "training.fault_tolerance.severity_thresholds.window_sec=0",
        "storage.max_concurrent_uploads=0",
        "storage.keep_checkpoints=0",
        "distributed.rollout_workers=0",
        "distributed.train_ranks=0",
    ],
)
def test_a_value_out_of_its_range_is_one_error_with_its_key(override: str) -> None:
    [found] = [finding for finding in findings(override) if not finding.warning]
    assert (found.key, found.warning) == (override.partition("=")[0], False)
    assert found.remedy


@pytest.mark.parametrize(
    "override",
    [
        "rollout.top_p=1.0",
        "training.eval_interval_steps=0",
        "training.fault_tolerance.rollout_retry_times=0",
        "training.fault_tolerance.severity_thresholds.rollout_lost_fraction=1",
        "training.fault_tolerance.adaptive_checkpoint.intervals=[{steps: 0, interval: 1}, {steps: 1, interval: 9}]",
        "training.fault_tolerance.adaptive_checkpoint.milestone_kl=0.01",
        "training.optim.betas=[0, 0.999]",
        "data.task=reasoning_gym:x",
    ],
)
def test_a_value_at_the_edge_of_its_range_is_fine(override: str) -> None:
    assert [finding for finding in findings(override) if not finding.warning] == []


def test_a_volatility_that_no_window_reaches_is_a_warning() -> None:
    adaptive = "training.fault_tolerance.adaptive_checkpoint"
    [found] = findings(f"{adaptive}.enabled=true", f"{adaptive}.volatility_window=5")
    assert (found.key, found.warning) == (f"{adaptive}.volatility_threshold", True)
    assert findings(f"{adaptive}.enabled=true", f"{adaptive}.volatility_window=6") == []


@given(step=st.integers(1, 96), batch=st.integers(1, 96))
def test_batches_fill_a_step_exactly(step: int, batch: int) -> None:
    config = Config()
    config.data.train_files = ["/d"]
    config.training.prompts_per_step, config.rollout.prompts_per_batch = step, batch
    found = check_constraints(config)
    assert bool(found) == (step % batch != 0)
    assert all(str(step) in f.what and f.key == "rollout.prompts_per_batch" for f in found)


def test_fewer_sequences_at_once_than_a_batch_has_only_queue_unless_strict() -> None:
    [warning] = findings("rollout.max_num_seqs=255")
    assert warning.warning
    assert "256 sequences" in warning.what
    [error] = findings("rollout.max_num_seqs=255", "rollout.strict=true")
    assert not error.warning
    assert findings("rollout.max_num_seqs=256", "rollout.strict=true") == []


def test_greedy_groups_get_a_warning_and_another_algorithm_may_draw_one_sample() -> None:
    assert [f.warning for f in findings("rollout.temperature=0")] == [True]
    assert findings("rollout.n=1", "algorithm.name=reinforce") == []


def test_inline_is_one_process() -> None:
    for cluster in ("", "distributed.cluster=inline"):
        overrides = [o for o in (cluster, "distributed.rollout_workers=2", "distributed.train_ranks=2") if o]
        assert [f.key for f in findings(*overrides)] == ["distributed.rollout_workers", "distributed.train_ranks"]
    assert findings("distributed.cluster=ray", "distributed.rollout_workers=2") == []


def test_a_run_needs_data() -> None:
    [found] = check_constraints(load_config(None, GOOD[:1]))
    assert found.key == "data.train_files"


def test_all_findings_are_reported_together() -> None:
    assert len(findings("total_steps=0", "rollout.n=1", "training.prompts_per_step=33", "rollout.max_num_seqs=1")) == 4
