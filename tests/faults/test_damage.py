"""Damage is named, never trusted, and never costs more than going back to the newest good state (C14, C17)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from verl_core.errors import DamagedCheckpoint, DamagedError, JournalError, RunMismatch
from verl_core.rollout.writer import AtomicWriter
from verl_core.types import BatchSpec, Sample, StagedBatch

from tests.support import runs
from tests.support.tiny import Tiny


@pytest.fixture(scope="session")
def paused(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps that stands at step 6, with checkpoints of steps 2, 4 and 6."""
    run = tmp_path_factory.mktemp("paused") / "run"
    tiny.trainer(run, 8).run(until_step=6)
    return run


def copy(paused: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(paused, tmp_path / "run"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: -max(1, path.stat().st_size // 10)])


NEWEST = "checkpoints/step_000006"


def test_c14_any_damaged_file_of_the_newest_checkpoint_is_named_and_the_one_before_is_used(
    tiny: Tiny, paused: Path, undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want = runs.status(undisturbed)["policy_digest"]
    files = sorted(p.relative_to(paused) for p in (paused / NEWEST).rglob("*") if p.is_file() and p.stat().st_size)
    assert len(files) >= 8
    for file in files:
        for harm in (flip, cut):
            run = copy(paused, tmp_path)
            harm(run / file)
            with pytest.raises(DamagedCheckpoint, match=file.name):
                tiny.trainer(run, 8, resume=str(run / NEWEST)).run()
            caplog.clear()
            with caplog.at_level(logging.WARNING, logger="verl"):
                result = tiny.trainer(run, 8).run()
            assert file.name in caplog.text, f"{harm.__name__} {file}: not named"
            assert result.policy_digest == want, f"{harm.__name__} {file}"
            shutil.rmtree(run)


@pytest.mark.parametrize("name", ["SUCCESS", "actor/manifest.json", "checkpoint_summary.json"])
def test_c04_a_checkpoint_with_a_missing_file_is_not_used(
    tiny: Tiny, paused: Path, undisturbed: Path, tmp_path: Path, name: str
) -> None:
    run = copy(paused, tmp_path)
    (run / NEWEST / name).unlink()
    result = tiny.trainer(run, 8).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.ok("verify", run).endswith("clean\n")


def test_with_every_checkpoint_damaged_the_committed_batches_rebuild_the_policy(
    tiny: Tiny, paused: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = copy(paused, tmp_path)
    for file in run.glob("checkpoints/step_*/actor/*.safetensors"):
        flip(file)
    result = tiny.trainer(run, 8).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.generated_though_committed(run) == []


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("file", ["samples.jsonl", "meta.json"])
def test_a_damaged_batch_is_named_never_trained_on_and_made_again_the_same(
    tiny: Tiny, paused: Path, undisturbed: Path, tmp_path: Path, file: str, harm: object
) -> None:
    run = copy(paused, tmp_path)
    for step in (2, 4, 6):  # so that step 1 is trained on again
        shutil.rmtree(run / f"checkpoints/step_{step:06d}")
    harm(run / "rollouts/epoch_0/batch_1" / file)  # type: ignore[operator]
    verified = runs.cli("verify", run)
    assert (verified.code, "epoch_0/batch_1" in verified.out) == (4, True)
    result = tiny.trainer(run, 8).run()
    condemned = [entry["payload"] for entry in runs.entries(run) if entry["event"] == "condemned"]
    assert [payload["name"] for payload in condemned] == ["epoch_0/batch_1"]  # type: ignore[index]
    assert list((run / "rollouts/.condemned").iterdir()), "it is kept aside"
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]
    assert runs.batches(run) == runs.batches(undisturbed)
    assert runs.ok("verify", run).endswith("clean\n")


def test_a_damaged_batch_that_comes_out_another_is_refused(
    tiny: Tiny, paused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy(paused, tmp_path)
    for step in (2, 4, 6):
        shutil.rmtree(run / f"checkpoints/step_{step:06d}")
    flip(run / "rollouts/epoch_0/batch_1/samples.jsonl")
    real = AtomicWriter.stage

    def other(self: AtomicWriter, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        return real(self, spec, [replace(s, reward=s.reward + 1) for s in samples], worker=worker, seed=seed)

    monkeypatch.setattr(AtomicWriter, "stage", other)
    with pytest.raises(DamagedError, match="made again"):
        tiny.trainer(run, 8).run()


@pytest.mark.parametrize("harm", ["removed", "emptied", "scrambled"])
def test_c01_data_without_a_readable_state_log_is_never_begun_over(
    tiny: Tiny, paused: Path, tmp_path: Path, harm: str
) -> None:
    run = copy(paused, tmp_path)
    log = run / "state_log.jsonl"
    log.unlink()
    if harm != "removed":
        log.write_bytes(b"" if harm == "emptied" else b"no json\nno json\n")
    before = sorted(p for p in run.rglob("*"))
    with pytest.raises(JournalError):
        tiny.trainer(run, 8).run()
    assert sorted(p for p in run.rglob("*")) == before


def test_a_folder_in_which_nothing_was_begun_simply_begins(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.json", "config.yaml"):
        shutil.copy(undisturbed / name, run / name)
    (run / "state_log.jsonl").write_bytes(b'{"seq":0,"ti')
    result = tiny.trainer(run, 8).run()
    assert result.policy_digest == runs.status(undisturbed)["policy_digest"]


def test_a_folder_that_lost_its_run_description_is_refused_untouched(tiny: Tiny, paused: Path, tmp_path: Path) -> None:
    run = copy(paused, tmp_path)
    (run / "run.json").unlink()
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    with pytest.raises(RunMismatch, match=r"restore run\.json"):
        tiny.trainer(run, 8).run()
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
