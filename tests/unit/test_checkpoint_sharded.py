"""Checkpoints: committed whole or not at all, every byte held against its hash, a damaged one named and replaced."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file
from verl_core.checkpoint.sharded import ShardedConfig, build_sharded
from verl_core.committed import content_hash
from verl_core.errors import DamagedCheckpoint, RunMismatch, StorageFull
from verl_core.types import BuildContext, CheckpointRef, Slice
from verl_core_storage.local import LocalStorage

from tests.support.made import checkpointer, state, weights

FILES = [
    "SUCCESS",
    "actor/config.json",
    "actor/manifest.json",
    "actor/shard_00000_3.safetensors",
    "actor/shard_00001_3.safetensors",
    "checkpoint_summary.json",
    "config.yaml",
    "optimizer/manifest.json",
    "optimizer/shard_00000_3.safetensors",
    "optimizer/shard_00001_3.safetensors",
    "rng_state.msgpack",
    "schema_version.json",
]


def saved(root: Path, step: int = 10) -> CheckpointRef:
    return checkpointer(root).save(state(step, attempt=3))


def summary(root: Path, name: str = "step_000010") -> dict[str, object]:
    fields: dict[str, object] = orjson.loads((root / name / "checkpoint_summary.json").read_bytes())
    return fields


def test_a_checkpoint_has_the_files_of_the_format_and_comes_back(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    folder = tmp_path / "step_000010"
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == FILES
    assert (ref.step, ref.branch, ref.attempt, ref.name) == (10, 0, 3, "step_000010")
    assert ref.bytes == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    reader = checkpointer(tmp_path).open(ref)
    assert reader.step == 10
    assert reader.file("config.yaml") == b"seed: 0\n"
    assert bytes(reader.read("actor", Slice("w", (1, 1), (4, 2))).data) == weights(10)[1:5, 1:3].tobytes()
    assert np.frombuffer(reader.read("optimizer", Slice("step", (), ())).data, np.int64) == 10


def test_the_summary_has_numbers_facts_and_a_hash_of_every_file(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    fields = summary(tmp_path)
    files = fields.pop("files")
    assert isinstance(files, dict)
    assert sorted([*files, "SUCCESS", "checkpoint_summary.json"]) == FILES
    for path, entry in files.items():
        data = (tmp_path / "step_000010" / path).read_bytes()
        assert entry == {"size": len(data), "hash": content_hash(data)}
    for name in ("hash", "model_hash", "optimizer_hash"):
        assert str(fields.pop(name)).startswith("blake3:")
    assert fields == {
        "format": 1, "run_id": "run", "branch": 0, "attempt": 3, "step": 10, "timestamp": 1.8e9,
        "rng_state_hash": content_hash(b"rng 10"), "policy_digest": "sums:10", "reward_mean": 0.5,
    }  # fmt: skip
    assert ref.summary_hash == content_hash((tmp_path / "step_000010/checkpoint_summary.json").read_bytes())


def test_the_model_hash_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    for ranks in (1, 2, 3):
        checkpointer(tmp_path / str(ranks)).save(state(10, ranks=ranks))
    found = [summary(tmp_path / str(ranks)) for ranks in (1, 2, 3)]
    for name in ("model_hash", "optimizer_hash", "rng_state_hash"):
        assert len({fields[name] for fields in found}) == 1
    checkpointer(tmp_path / "other").save(state(11, ranks=1))
    assert summary(tmp_path / "other", "step_000011")["model_hash"] != found[0]["model_hash"]


def test_a_single_ranks_actor_folder_is_a_model_that_safetensors_loads(tmp_path: Path) -> None:
    checkpointer(tmp_path).save(state(10, ranks=1))
    found = load_file(tmp_path / "step_000010/actor/shard_00000_0.safetensors")
    np.testing.assert_array_equal(found["w"], weights(10))


def test_facts_that_the_summary_has_itself_are_a_mistake(tmp_path: Path) -> None:
    made = state(10)
    with pytest.raises(ValueError, match="step"):
        checkpointer(tmp_path).save(replace(made, facts={"step": 11}))


# --- list ------------------------------------------------------------------------------------------


def test_the_list_has_committed_ones_newest_first(tmp_path: Path) -> None:
    refs = [saved(tmp_path, step) for step in (5, 1_000_000, 10)]
    assert checkpointer(tmp_path).list() == [refs[1], refs[2], refs[0]]
    assert checkpointer(tmp_path / "nothing").list() == []


@pytest.mark.parametrize("lost", ["SUCCESS", "checkpoint_summary.json", "actor/shard_00001_3.safetensors"])
def test_c01_c04_a_folder_without_mark_or_shard_is_not_committed_and_named(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    older = saved(tmp_path, 5)
    saved(tmp_path, 10)
    (tmp_path / "step_000010" / lost).unlink()
    at = checkpointer(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert at.list() == at.list() == [older]
    [record] = caplog.records
    assert "step_000010 is not a committed checkpoint" in record.getMessage()
    assert lost in record.getMessage()


def test_c01_saving_over_step_folders_without_mark_keeps_their_data(tmp_path: Path) -> None:
    (tmp_path / "step_000010/actor").mkdir(parents=True)
    (tmp_path / "step_000010/actor/old.bin").write_bytes(b"precious")
    ref = saved(tmp_path)
    checkpointer(tmp_path).verify(ref)
    assert (tmp_path / ".condemned/step_000010.3/actor/old.bin").read_bytes() == b"precious"


def test_a_checkpoint_of_another_run_is_never_taken_for_ours(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    ours = checkpointer(tmp_path, run="ours")
    calls: list[Callable[[], object]] = [
        ours.list, lambda: ours.verify(ref), lambda: ours.open(ref), lambda: ours.save(state(10)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(RunMismatch, match="run run"):
            call()


# --- damage ----------------------------------------------------------------------------------------


def damages(data: bytes) -> list[bytes]:
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return [flipped, data[:-1], data[:middle], b"", data + b"\0"]


@pytest.mark.parametrize("name", [name for name in FILES if name != "SUCCESS"])
def test_c14_a_changed_cut_or_lost_file_is_named_and_the_step_is_saved_anew(tmp_path: Path, name: str) -> None:
    ref = saved(tmp_path)
    at = checkpointer(tmp_path)
    file = tmp_path / "step_000010" / name
    good = file.read_bytes()
    for bad in damages(good):
        file.write_bytes(bad)
        for listed in (ref, *at.list()):
            with pytest.raises(DamagedCheckpoint, match=f"step_000010/{name}"):
                at.open(listed)
        assert saved(tmp_path) == ref
        assert at.list() == [ref]
        at.verify(ref)
        assert file.read_bytes() == good
    file.unlink()
    with pytest.raises(DamagedCheckpoint, match=f"step_000010/{name}: the file is missing"):
        at.verify(ref)
    assert len(list((tmp_path / ".condemned").iterdir())) == len(damages(good))


def test_every_single_byte_of_the_summary_counts(tmp_path: Path) -> None:
    saved(tmp_path)
    at = checkpointer(tmp_path)
    file = tmp_path / "step_000010/checkpoint_summary.json"
    good = file.read_bytes()
    for place in range(0, len(good), 5):
        file.write_bytes(good[:place] + bytes([good[place] ^ 2]) + good[place + 1 :])
        [listed] = at.list()
        with pytest.raises(DamagedCheckpoint, match=r"checkpoint_summary\.json"):
            at.verify(listed)


def test_files_of_another_step_are_found_whether_one_or_all_are_swapped_in(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    ref = saved(tmp_path, 10)
    shard = "actor/shard_00000_3.safetensors"
    shutil.copy(tmp_path / "step_000005" / shard, tmp_path / "step_000010" / shard)
    with pytest.raises(DamagedCheckpoint, match=shard):
        checkpointer(tmp_path).open(ref)
    shutil.rmtree(tmp_path / "step_000010")
    shutil.copytree(tmp_path / "step_000005", tmp_path / "step_000010")
    with pytest.raises(DamagedCheckpoint, match="summary of step 5"):
        checkpointer(tmp_path).open(ref)


def test_a_whole_checkpoint_that_the_journal_does_not_know_is_refused(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    with pytest.raises(DamagedCheckpoint, match="not the summary that was committed"):
        checkpointer(tmp_path).open(replace(ref, summary_hash="blake3:other"))


def test_a_condemned_checkpoint_lies_aside(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    assert checkpointer(tmp_path, attempt=4).condemn(ref) == ".condemned/step_000010.4"
    assert checkpointer(tmp_path).list() == []
    assert (tmp_path / ".condemned/step_000010.4/SUCCESS").exists()


# --- save again, room, delete, sweep ---------------------------------------------------------------


def test_saving_a_step_that_is_saved_changes_nothing(tmp_path: Path) -> None:
    ref = saved(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert checkpointer(tmp_path).save(state(10, ranks=1, attempt=9)) == ref
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_step_that_is_saved_with_another_policy_is_not_passed_off_as_this_one(tmp_path: Path) -> None:
    saved(tmp_path)
    made = state(10)
    with pytest.raises(RunMismatch, match="another policy"):
        checkpointer(tmp_path).save(replace(made, facts={"policy_digest": "sums:else"}))


def test_c11_without_room_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "free_bytes", lambda self: 1_000_000)
    with pytest.raises(StorageFull, match=r"needs 1\.0 MB, 1\.0 MB are free"):
        saved(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_read_back_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = saved(tmp_path, 5)
    write = LocalStorage.write

    def rotten(self: LocalStorage, path: str, data: object) -> int:
        size = write(self, path, data)  # type: ignore[arg-type]
        if path.endswith("optimizer/manifest.json"):
            write(self, path, bytes(size))
        return size

    monkeypatch.setattr(LocalStorage, "write", rotten)
    with pytest.raises(DamagedCheckpoint, match=r"optimizer/manifest\.json"):
        saved(tmp_path, 10)
    assert checkpointer(tmp_path).list() == [older]


def test_delete_takes_the_whole_checkpoint_and_is_harmless_twice(tmp_path: Path) -> None:
    refs = [saved(tmp_path, step) for step in (5, 10)]
    at = checkpointer(tmp_path)
    at.delete(refs[0])
    at.delete(refs[0])
    assert at.list() == [refs[1]]
    assert not (tmp_path / "step_000005").exists()
    assert list((tmp_path / ".staging").iterdir()) == []


def test_sweep_removes_what_dead_attempts_left(tmp_path: Path) -> None:
    for name in ("step_000010_1", "step_000005_1_deleted", "step_000010_2"):
        (tmp_path / ".staging" / name).mkdir(parents=True)
        (tmp_path / ".staging" / name / "file").write_bytes(b"half")
    assert checkpointer(tmp_path, attempt=2).sweep() == ["step_000005_1_deleted", "step_000010_1"]
    assert [p.name for p in (tmp_path / ".staging").iterdir()] == ["step_000010_2"]


# --- build and schema ------------------------------------------------------------------------------


def test_c13_an_unknown_schema_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "verl_core.checkpoint.schema.schema_version", lambda: b'{"classes":{},"code_version":"9","format":9}'
    )
    ref = saved(tmp_path)
    monkeypatch.undo()
    with pytest.raises(RunMismatch, match=r"schema_version\.json: format 9 .* use verl-core 9"):
        checkpointer(tmp_path).open(ref)


def test_it_is_built_from_the_context(tmp_path: Path) -> None:
    at = build_sharded(ShardedConfig(read_back=False), BuildContext(run_id="run"), LocalStorage(str(tmp_path)))
    assert at.save(state(10)).step == 10
