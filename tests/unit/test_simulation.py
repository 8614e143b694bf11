"""The real controller in a simulated cluster keeps the promise under every kind of fault; and the check can fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from verl_core.actions import Actions
from verl_core.checkpoint.keeper import Keeper
from verl_core.cli.main import main
from verl_core.errors import ConfigError, DamagedError
from verl_core.testing.simulation import Report, load_scenario, scenario_names, simulate
from verl_core.testing.simulation.faults import KINDS
from verl_core.types import CheckpointState
from verl_core.workers import StepCall, Weights

SMALL = ["rollout_workers=24", "train_ranks=8", "hours=8", "fault_tolerance.checkpoint_interval_steps=3"]


def played(*overrides: str) -> Report:
    return simulate(load_scenario("default", [*SMALL, *overrides]))


def facts(report: Report) -> list[object]:
    return [getattr(report, name) for name in Report.__slots__ if name != "seconds"]


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_and_nothing_repeated_under_all_faults_at_once(seed: int) -> None:
    report = played(f"seed={seed}", "faults.controller=1")
    assert report.violations == ()
    assert (report.samples_lost, report.samples_repeated) == (0, 0)
    assert report.steps > 3
    assert sum(report.faults.values()) > 100


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_of_fault_alone_is_survived_and_the_run_gets_on(kind: str) -> None:
    alone = [f"faults.{other}={float(other == kind)}" for other in KINDS]
    report = played(*alone, "mtbf_hours=0.2")
    assert set(report.faults) == {kind}
    assert report.violations == ()
    assert report.steps > 10


def test_equal_seeds_give_equal_reports_and_other_seeds_others() -> None:
    assert facts(played("seed=5")) == facts(played("seed=5"))
    assert facts(played("seed=5")) != facts(played("seed=6"))


def test_an_undisturbed_run_has_a_goodput_near_one() -> None:
    report = played("mtbf_hours=0", "hours=30")
    assert 0.97 < report.goodput < 1.03
    assert (report.faults, report.attempts, report.steps_run_again) == ({}, 1, 0)


def test_packaged_scenarios_say_where_they_come_from() -> None:
    assert {"default", "robustrl-256", "llama3-16384"} <= set(scenario_names())
    for name in scenario_names():
        assert load_scenario(name).assumptions


def test_a_lost_rollout_worker_is_never_held_against_the_training_group() -> None:
    report = played("faults.train_node=0", "faults.hang=0", "faults.controller=0", "faults.slow=0", "faults.storage=0")
    assert report.faults["rollout_node"] > 20
    assert "rebuild" not in report.recoveries


# --- the check can fail: defects that it must find -------------------------------------------------


def _stale_weights_marked_fresh(patch: pytest.MonkeyPatch) -> None:
    real, first = Actions._weights, list[Weights]()

    def stale(self: Actions) -> Weights:
        first.append(real(self))
        return Weights(first[-1].version, first[0].tensors)

    patch.setattr(Actions, "_weights", stale)


def _a_batch_is_dropped_before_training(patch: pytest.MonkeyPatch) -> None:
    def train(self: Actions, step: int) -> None:
        refs = tuple(self._parts.committed[key] for key in self._parts.plan.schedule.keys(step))
        self._parts.fleet.begin_step(step, StepCall(step, refs[:-1]))

    patch.setattr(Actions, "train", train)


def _a_save_holds_the_state_before(patch: pytest.MonkeyPatch) -> None:
    real, states = Keeper.save, list[CheckpointState]()

    def late(self: Keeper, state: CheckpointState) -> None:
        states.append(state)
        before = states[-2] if len(states) > 1 else state
        real(self, replace(state, files=before.files, facts=before.facts))

    patch.setattr(Keeper, "save", late)


def _committed_batches_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("verl_core.testing.simulation.attempt.committed_batches", lambda *_: {})


PLANTS = [
    _stale_weights_marked_fresh,
    _a_batch_is_dropped_before_training,
    _a_save_holds_the_state_before,
    _committed_batches_are_forgotten,
]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    found: object = ()
    with suppress(DamagedError):
        found = "raised by the product"
        found = played("faults.controller=2").violations
    assert found


# --- the command -----------------------------------------------------------------------------------


def test_the_command_prints_the_account(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["simulate", "--workers", "16", "--hours", "3", "--seed", "2", "--set", "train_ranks=8"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert "0 lost, 0 repeated" in out
    assert "goodput" in out


def test_scenario_files_are_read_and_bad_ones_are_one_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nrollout_workers: 3\n")
    assert load_scenario(str(file)).rollout_workers == 3
    for text in ("rollout_wokers: 3\n", "rollout_workers: 0\n", "hours: never\n", "hours: [\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="mine"):
            load_scenario(str(file))
    with pytest.raises(ConfigError, match="robustrl-256"):
        load_scenario("robustrl")
