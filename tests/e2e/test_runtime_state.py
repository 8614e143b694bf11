"""The runtime state in the run's folder, and what a start says it goes on with, domain by domain."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from verl_core.state.runtime import FILE, RuntimeState, decode

from tests.support import runs
from tests.support.tiny import Tiny


def kept(run: Path) -> RuntimeState:
    return decode((run / FILE).read_bytes(), FILE)


def test_it_is_written_every_so_many_steps(tiny: Tiny, tmp_path: Path) -> None:
    result = tiny.trainer(tmp_path / "run", 5, overrides=["training.runtime_interval_steps=2"]).run()
    state = kept(tmp_path / "run")
    assert (result.step, state.step, len(state.kl_window), state.sampler_offset) == (5, 4, 4, 30)
    assert state.reward_window == tuple(result.rewards[:4])


def test_it_is_written_when_a_run_ends_by_an_exception(tiny: Tiny, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path / "run", 8)

    def step(result: object) -> None:
        if len(trainer.metrics) == 3:
            raise KeyboardInterrupt  # an observer's own errors do not reach the run

    trainer.on("step_finished", step)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert kept(tmp_path / "run").step == 3


def test_a_run_that_ends_as_it_should_has_none(tiny: Tiny, tmp_path: Path) -> None:
    """Its checkpoint has it."""
    tiny.trainer(tmp_path / "run", 4).run(until_step=2)
    assert not (tmp_path / "run" / FILE).exists()


def test_a_start_tells_what_it_goes_on_with(tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "verl.start")
    first = tiny.trainer(tmp_path / "run", 8).run(until_step=3)
    assert not [r for r in caplog.records if r.name == "verl.start"], "the first start goes on with nothing"
    tiny.trainer(tmp_path / "run", 8).run()
    checkpoint, runtime, orchestration = (r.getMessage() for r in caplog.records if r.name == "verl.start")
    assert checkpoint == f"checkpoint state: step 3, policy {first.policy_digest}"
    assert runtime == "runtime state: epoch 0, 22 prompts consumed, KL window of 3 steps, reward window of 3"
    assert orchestration == "orchestration state: data and config as they were"


def test_the_command_line_prints_it(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(4)
    runs.ok("run", "--config", config, "--run-dir", tmp_path / "run", "--until-step", "2")
    again = runs.cli("run", "--config", config, "--run-dir", tmp_path / "run")
    assert (again.code, again.err.count("INFO ")) == (0, 3)
    assert "INFO checkpoint state: step 2" in again.err
