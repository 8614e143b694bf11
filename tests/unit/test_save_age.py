"""A run whose newest save is old saves by itself when a GPU is nearly full: once, with an alert, and never else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from verl_core.alerts import Alerts
from verl_core.checkpoint.age import ASK_S, GpuMemory, SaveAge
from verl_core.config.devices import memory_in_use
from verl_core.protocols import LossFn
from verl_core.types import Alert, Completion, GenerateRequest, Sampling, TrainBatch, UpdateMetrics
from verl_core_engines.inline import InlineCluster

from tests.support import fake_nvml, light, runs
from tests.support.light import LightRollout, LightTrainer
from tests.support.promise import broken_at_the_end, reference_of


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FAKE_NVML", fake_nvml.node(2, used=0.97))
    return monkeypatch


def answered(ask: Callable[[], float | str]) -> float | str:
    """What comes once the driver has answered, within two seconds."""
    runs.wait_for(lambda: not any(t.name == "verl-gpu-memory" for t in threading.enumerate()), 2, "the driver")
    return ask()


# --- the driver ------------------------------------------------------------------------------


def test_the_fullest_gpu_that_the_process_sees_counts(driver: pytest.MonkeyPatch) -> None:
    assert memory_in_use({}) == pytest.approx(0.97)
    assert memory_in_use({"CUDA_VISIBLE_DEVICES": fake_nvml.uuid(0)}) == pytest.approx(1 / 80)
    driver.setenv("FAKE_NVML", "")
    assert memory_in_use({}) == 0.0, "no driver"


def test_the_driver_is_asked_every_few_seconds_at_most_and_each_answer_is_told_once() -> None:
    asked: list[int] = []

    def read() -> float:
        asked.append(1)
        return 0.5

    memory = GpuMemory(read)
    assert memory.share(0.0) == 0.0, "the first call only asks"
    assert answered(lambda: memory.share(0.1)) == 0.5
    assert [memory.share(t) for t in (0.2, ASK_S - 0.1)] == [0.0, 0.0]
    assert len(asked) == 1
    assert memory.share(ASK_S) == 0.0
    assert answered(lambda: memory.share(ASK_S + 0.1)) == 0.5
    assert len(asked) == 2


def test_a_driver_that_hangs_holds_nobody_and_is_not_asked_again() -> None:
    gate, asked = threading.Event(), list[int]()

    def read() -> float:
        asked.append(1)
        gate.wait(0.5)
        return 1.0

    memory = GpuMemory(read)
    begin = time.monotonic()
    assert [memory.share(float(t)) for t in range(0, 100, 10)] == [0.0] * 10
    assert (time.monotonic() - begin < 1, len(asked)) == (True, 1)
    gate.set()
    assert answered(lambda: memory.share(100.0)) == 1.0


# --- the decision ----------------------------------------------------------------------------


def risk(age: SaveAge, step: int, now: float) -> str:
    """With an answer of the driver."""
    return age.risk(step, now) or str(answered(lambda: age.risk(step, now)))


def test_an_old_save_and_a_full_gpu_together_are_a_risk_once_in_the_period(driver: pytest.MonkeyPatch) -> None:
    age = SaveAge(1800, 0.95)
    assert risk(age, 3, 9e9) == "", "nothing is loaded yet"
    age.saved(2, 100.0)
    assert risk(age, 3, 1900.0) == "", "not old yet"
    assert risk(age, 2, 1901.0) == "", "the newest step is saved"
    assert risk(age, 3, 1901.0) == "97% of a GPU's memory is in use, and the newest save (step 2) is 1801 s old"
    assert risk(age, 3, 1910.0) == "", "it was told"
    assert risk(age, 4, 3702.0).endswith("(step 2) is 1801 s old"), "the period is over, and still no save"
    age.saved(4, 3800.0)
    assert risk(age, 5, 5600.0) == ""


@pytest.mark.parametrize(("limit_s", "used"), [(1800.0, 0.95), (1800.0, 0.5), (0.0, 0.99)])
def test_room_on_the_gpu_or_no_limit_is_no_risk(driver: pytest.MonkeyPatch, limit_s: float, used: float) -> None:
    driver.setenv("FAKE_NVML", fake_nvml.node(2, used=used))
    age = SaveAge(limit_s, 0.95)
    age.saved(1, 0.0)
    assert risk(age, 2, 1e6) == ""


# --- a run -----------------------------------------------------------------------------------

STEPS, STEP_S = 8, 1000.0


@pytest.fixture
def told(driver: pytest.MonkeyPatch) -> list[Alert]:
    """The alerts of a run whose training steps take ``STEP_S`` of the cluster's time each."""
    alerts, send = list[Alert](), Alerts.send

    def listened(self: Alerts, alert: Alert) -> None:
        alerts.append(alert)
        send(self, alert)

    driver.setattr(InlineCluster, "now", lambda _: time.monotonic() + Slow.steps * STEP_S)
    driver.setattr(Alerts, "send", listened)
    driver.setattr(Slow, "steps", 0)
    return alerts


class Slow(LightTrainer):
    steps = 0

    def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
        Slow.steps += 1
        return super().update(batch, loss)


class Waiting(LightRollout):
    """Leaves the driver time to answer."""

    def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        time.sleep(0.03)
        return super().generate(requests, sampling)


def run(root: Path, *changes: str) -> list[int]:
    """The steps that the run saved because it was asked to."""
    rare = ("training.fault_tolerance.checkpoint_interval_steps=1000", "storage.keep_checkpoints=99", *changes)
    light.run(root, STEPS, changes=rare, trainer=Slow, rollout=Waiting)
    return [e["payload"]["step"] for e in runs.entries(root) if e["event"] == "save"]  # type: ignore[index]


def test_e8_a_run_with_an_old_save_and_a_full_gpu_saves_by_itself_and_alerts(tmp_path: Path, told: list[Alert]) -> None:
    saved = run(tmp_path / "run")
    assert len(saved) >= 2
    assert saved[0] in (2, 3), "1800 s are two steps"
    assert all(later - earlier >= 2 for earlier, later in pairwise(saved))
    assert all(step - (alert.step or 0) in (0, 1) for alert, step in zip(told, saved, strict=True)), "a boundary later"
    assert all(f"save (step {before})" in alert.text for before, alert in zip([0, *saved], told, strict=False))
    marks = (tmp_path / "run").glob("checkpoints/step_*/SUCCESS")
    assert sorted(int(p.parent.name.removeprefix("step_")) for p in marks) == sorted({*saved, STEPS})
    light.run(tmp_path / "undisturbed", STEPS)
    assert broken_at_the_end(tmp_path / "run", reference_of(tmp_path / "undisturbed")) == []


@pytest.mark.parametrize(
    "change",
    [
        "training.fault_tolerance.checkpoint_interval_steps=1",
        "training.fault_tolerance.max_checkpoint_age_sec=0",
        "training.fault_tolerance.max_checkpoint_age_sec=9000",
        "training.fault_tolerance.high_gpu_memory_fraction=0.98",
        "training.device=cpu",
    ],
)
def test_a_run_that_is_not_at_risk_is_asked_for_nothing(tmp_path: Path, told: list[Alert], change: str) -> None:
    assert (run(tmp_path, change), told) == ([], [])
