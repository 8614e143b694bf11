"""Workers that fail, hang or never work: rescheduled, journalled, bounded, and the same run in the end (C05, C15)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from verl_core.api import Trainer
from verl_core.errors import SafeModeError, StorageFull
from verl_core.state.runtime import FILE, decode
from verl_core.types import Bytes
from verl_core_storage.local import LocalStorage

from tests.support import runs
from tests.support.dists import Install
from tests.support.tiny import Tiny

SICK = '''
import time
from dataclasses import dataclass
from pathlib import Path

from verl_core.hookspecs import hookimpl
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine
from verl_core_engines.hf import HfConfig, HfEngine


@dataclass
class SickConfig:
    marks: str = ""  # a folder: one file a fit
    times: int = 1
    hang: bool = False


def maybe(config):
    """A fit, as long as there were fewer than ``times``."""
    marks = Path(config.marks)
    if len(list(marks.iterdir())) < config.times:
        (marks / str(time.time_ns())).touch()
        if config.hang:
            time.sleep(60)
        raise RuntimeError("a fit")


class SickRollout(HfEngine):
    def __init__(self, config, context):
        super().__init__(HfConfig(), context)
        self.sick = config

    def generate(self, requests, sampling):
        maybe(self.sick)
        return super().generate(requests, sampling)


class SickTrainer(FsdpEngine):
    def __init__(self, config, context):
        super().__init__(FsdpConfig(), context)
        self.sick = config

    def update(self, batch, loss):
        if batch.step == 3:
            maybe(self.sick)
        return super().update(batch, loss)


@hookimpl
def register_rollout_engines(register):
    register("sick", SickConfig, SickRollout)


@hookimpl
def register_train_engines(register):
    register("sick", SickConfig, SickTrainer)
'''


@pytest.fixture
def marks(install: Install, tmp_path: Path) -> Path:
    install("verl-sick", {"sick": "verl_sick"}, {"verl_sick": SICK})
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


def rollout(marks: Path, times: int, **more: object) -> list[str]:
    options = {"marks": marks, "times": times, **more}
    return ["training.name=fsdp", "rollout.name=sick", *(f"rollout.{k}={v}" for k, v in options.items())]


def trainer(tiny: Tiny, run: Path, overrides: list[str]) -> Trainer:
    return tiny.trainer(run, 8, overrides, plugins=["sick,fsdp,hf"])


def events(run: Path) -> list[str]:
    return [str(entry["event"]) for entry in runs.entries(run)]


def test_c05_a_worker_that_fails_is_rescheduled_and_the_run_is_the_same(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, marks: Path
) -> None:
    run = tmp_path / "run"
    result = trainer(tiny, run, rollout(marks, times=2)).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.batches(run) == runs.batches(undisturbed)
    assert events(run).count("retry_rollout") == 2
    assert runs.status(run)["faults"] == 2
    assert runs.ok("verify", run).endswith("clean\n")


def test_c05_a_worker_that_hangs_is_a_fault_within_its_deadline(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, marks: Path
) -> None:
    run = tmp_path / "run"
    overrides = [*rollout(marks, times=1, hang=True), "training.fault_tolerance.rollout_timeout_sec=3"]
    job = trainer(tiny, run, overrides)
    recovered: list[tuple[str, float]] = []
    job.on("recovery_finished", lambda fault, decision, seconds: recovered.append((decision.action, seconds)))
    result = job.run()
    assert [action for action, _ in recovered] == ["reschedule"]
    assert 0 < recovered[0][1] < 5
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    log = runs.entries(run)
    dispatched = next(e for e in log if e["event"] == "rollout_dispatched")
    fault = next(e for e in log if e["event"] == "fault")
    assert 3 <= float(str(fault["time"])) - float(str(dispatched["time"])) < 5
    assert fault["payload"]["fault"]["kind"] == "rollout_timeout"  # type: ignore[index]


def test_c15_a_batch_that_never_works_ends_in_safe_mode_until_a_person_confirms(
    tiny: Tiny, tmp_path: Path, marks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    overrides = [*rollout(marks, times=8), "training.prompts_per_step=4"]  # one batch a step
    with caplog.at_level(logging.WARNING, logger="verl"), pytest.raises(SafeModeError, match="batch epoch_0/batch_0"):
        trainer(tiny, run, overrides).run()
    assert len(list(marks.iterdir())) == 4, "one try and three more"
    for name in range(4):
        (marks / f"well now {name}").touch()
    assert "safe_mode" in caplog.text, "a person was told"
    facts = runs.status(run)
    assert (facts["state"], facts["safe_mode"]) == ("SAFE_MODE", True)
    with pytest.raises(SafeModeError):
        trainer(tiny, run, overrides).run()
    runs.ok("confirm", run, "--name", "someone", "--reason", "the node was replaced")
    assert trainer(tiny, run, overrides).run().step == 8
    confirmed = next(e for e in runs.entries(run) if e["event"] == "confirmed")
    assert confirmed["payload"] == {"who": "someone", "reason": "the node was replaced"}
    refused = runs.cli("confirm", run, "--name", "someone", "--reason", "again")
    assert (refused.code, "nothing to confirm" in refused.err) == (2, True)


def test_a_training_step_that_fails_goes_back_to_the_newest_good_state_within_the_attempt(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, marks: Path
) -> None:
    run = tmp_path / "run"
    overrides = ["training.name=sick", "rollout.name=hf", f"training.marks={marks}"]
    result = trainer(tiny, run, overrides).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert events(run).count("rebuild") == 1
    assert events(run).count("opened") == 1
    assert runs.generated_though_committed(run) == []


def test_a_training_step_that_always_fails_ends_in_safe_mode_and_loses_nothing(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, marks: Path
) -> None:
    run = tmp_path / "run"
    overrides = ["training.name=sick", "rollout.name=hf", f"training.marks={marks}", "training.times=3"]
    with pytest.raises(SafeModeError, match="step 3"):
        trainer(tiny, run, overrides).run()
    assert decode((run / FILE).read_bytes(), FILE).step == 2, "the runtime state where it ended"
    assert runs.status(run)["step"] == 2
    runs.ok("confirm", run, "--name", "someone", "--reason", "looked at it")
    result = trainer(tiny, run, overrides).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.generated_though_committed(run) == []


@pytest.mark.parametrize("good_writes", [0, 3, 7, 20, 40])
def test_a_disk_that_stays_full_ends_the_run_with_one_error_and_it_goes_on_later(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_writes: int
) -> None:
    run, written = tmp_path / "run", [0]
    real = LocalStorage.write

    def full(self: LocalStorage, path: str, data: Bytes) -> int:
        written[0] += 1
        if written[0] > good_writes:
            raise StorageFull("no space left", where=path, remedy="free some space")
        return real(self, path, data)

    overrides = ["training.fault_tolerance.severity_thresholds.rollout_storage_down_sec=0.3"]
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "write", full)
        with pytest.raises(StorageFull, match="no space left"):
            tiny.trainer(run, 8, overrides).run()
    result = tiny.trainer(run, 8, overrides).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.batches(run) == runs.batches(undisturbed)
    assert runs.ok("verify", run).endswith("clean\n")


def test_c11_a_disk_that_is_full_for_a_while_only_delays(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [0]
    real = LocalStorage.write

    def full_for_a_while(self: LocalStorage, path: str, data: Bytes) -> int:
        calls[0] += 1
        if 5 <= calls[0] < 9:
            raise StorageFull("no space left", where=path)
        return real(self, path, data)

    monkeypatch.setattr(LocalStorage, "write", full_for_a_while)
    with caplog.at_level(logging.WARNING, logger="verl"):
        result = tiny.trainer(tmp_path / "run", 8).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert "storage is not writable" in caplog.text
