"""Starts that are refused leave everything as it is: other data, another config, a lost log, a foreign folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from verl_core.committed import seal, unseal
from verl_core.data.fingerprint import Entry, of_entries, sha256_of
from verl_core.errors import InputError, JournalError, RunMismatch, VerlError
from verl_core.rollout.writer import AtomicWriter
from verl_core.types import BatchKey, BatchSpec, RunIdentity
from verl_core_storage.local import LocalStorage

from tests.support import light
from tests.support.made import samples
from tests.support.promise import broken_at_the_end, history_of, reference_of

run = partial(light.run, steps=3)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("begun")
    run(root, until=2)
    return root


@pytest.fixture
def root(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


HERE = (".lock", "controller.json", "orchestration.json")  # who is at work, and where the folder lies


def content(root: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return {name: data for name, data in found.items() if name not in HERE}


def refused(root: Path, error: type[VerlError], match: str, **more: object) -> None:
    before = content(root)
    with pytest.raises(error, match=match):
        run(root, **more)  # type: ignore[arg-type]
    assert content(root) == before


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ("seed=4", "seed: 3 → 4"),
        ("rollout.n=3", "rollout.n: 2 → 3"),
        ("rollout.temperature=0.5", r"rollout.temperature: 1.0 → 0.5"),
        ("training.prompts_per_step=2", "training.prompts_per_step: 4 → 2"),
        ("data.shuffle=false", "data.shuffle: True → False"),
    ],
)
def test_a_changed_key_that_decides_about_content_is_refused(root: Path, change: str, shown: str) -> None:
    refused(root, RunMismatch, shown, changes=[change])


def test_a_changed_interval_is_accepted(root: Path, begun: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole")
    run(root, changes=["training.fault_tolerance.checkpoint_interval_steps=2", "storage.keep_checkpoints=1"])
    assert broken_at_the_end(root, reference_of(tmp_path / "whole")) == []


def test_other_data_is_refused(root: Path) -> None:
    other = of_entries([Entry("light", light.PROMPTS, sha256_of(b"other"))])
    (root / ".dataset_fingerprint").write_text(other.to_json())
    refused(root, RunMismatch, "light: content differs")


def test_resume_never_is_refused_on_a_folder_that_holds_a_run(root: Path) -> None:
    refused(root, InputError, "the folder holds a run at step 2", resume="never")


def test_fewer_steps_than_were_done_are_refused(root: Path) -> None:
    with pytest.raises(InputError, match="total_steps is 1, but the run is at step 2"):
        light.run(root, 1)


# --- logs and folders -------------------------------------------------------------------------


def emptied(log: Path) -> None:
    log.write_bytes(b"")


def scrambled(log: Path) -> None:
    log.write_bytes(b"no json\nno json\n")


@pytest.mark.parametrize("harm", [Path.unlink, emptied, scrambled])
def test_c01_data_without_a_readable_state_log_is_never_begun_over(root: Path, harm: Callable[[Path], None]) -> None:
    harm(root / "state_log.jsonl")
    refused(root, JournalError, "restore")


def test_c01_checkpoints_alone_are_never_begun_over(root: Path) -> None:
    (root / "state_log.jsonl").unlink()
    shutil.rmtree(root / "rollouts")
    refused(root, JournalError, "no readable state log")


def test_a_state_log_of_another_run_is_refused(root: Path, tmp_path: Path) -> None:
    run(tmp_path / "other", until=1)
    shutil.copy(tmp_path / "other/state_log.jsonl", root / "state_log.jsonl")
    refused(root, RunMismatch, "the state log belongs to run")


def test_a_run_that_lost_its_description_is_refused(root: Path) -> None:
    (root / "run.json").unlink()
    refused(root, RunMismatch, r"restore run\.json")


@pytest.mark.parametrize("name", ["rollouts", "checkpoints"])
def test_a_prefix_that_another_run_has_claimed_is_refused(root: Path, name: str) -> None:
    (root / name / "RUN").write_text("another run")
    refused(root, RunMismatch, "belongs to run another run")


def test_c13_a_batch_of_another_format_ends_the_start_and_nothing_is_made_in_its_place(root: Path) -> None:
    """As another version wrote it: whole, but not ours to read."""
    meta = root / "rollouts/epoch_0/batch_3/meta.json"
    meta.write_bytes(seal({**unseal(meta.read_bytes()), "format": 2}))
    shutil.rmtree(root / "checkpoints/step_000002")
    with pytest.raises(RunMismatch, match=r"epoch_0/batch_3.*format 2 is not known here"):
        run(root)
    assert unseal(meta.read_bytes())["format"] == 2


def test_a_committed_batch_that_the_schedule_does_not_want_is_refused(root: Path) -> None:
    identity = RunIdentity(history_of(root).run_id, 0, 1)
    at, of = AtomicWriter(LocalStorage(str(root / "rollouts")), identity), BatchSpec(BatchKey(0, 4), 1, (4, 2))
    at.commit(at.stage(of, samples(of), worker="rollout-0", seed=3))
    refused(root, RunMismatch, "is not the one of the schedule")
