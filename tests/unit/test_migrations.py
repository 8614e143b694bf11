"""Checkpoints of older schemas are read as if they had been written today; their runs go on as if nothing were."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from typer.testing import CliRunner
from verl_core.checkpoint import schema
from verl_core.checkpoint.migrations import Migration
from verl_core.checkpoint.migrations.step import ReadFile, moved
from verl_core.checkpoint.schema import SCHEMA, upgraded
from verl_core.checkpoint.sharded import ShardedReader
from verl_core.cli.main import app
from verl_core.errors import DamagedCheckpoint, ObjectMissing, RunMismatch
from verl_core.protocols import CheckpointReader
from verl_core.state.runtime import decode
from verl_core.types import Slice
from verl_core_storage.local import LocalStorage

from tests.support import light, made, released

SCHEMA_1 = (released.SIGNATURES / "1.json").read_bytes()
NUMBERS = sorted(int(folder.name) for folder in released.DATA.iterdir())


# --- released schemas ------------------------------------------------------------------------


@pytest.fixture(params=NUMBERS)
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a run that was left under an older release, or under this one."""
    return Path(shutil.copytree(released.DATA / str(request.param) / "run", tmp_path / "old"))


def test_every_released_schema_is_kept() -> None:
    assert set(NUMBERS) == {*range(1, SCHEMA + 1)}


def test_c13_the_run_of_an_older_schema_goes_on_to_the_same_end(old_run: Path, tmp_path: Path) -> None:
    ended = light.run(old_run, released.STEPS, changes=[released.KEEP])
    undisturbed = light.run(tmp_path / "new", released.STEPS, changes=[released.KEEP])
    assert (ended.step, ended.policy_digest) == (released.STEPS, undisturbed.policy_digest)
    assert ended.rewards == undisturbed.rewards


def test_the_checkpoints_of_an_older_schema_verify_and_their_states_are_read(old_run: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(old_run)])
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "clean"), done.output
    run_id = (old_run / "checkpoints/RUN").read_text()
    checkpointer = made.checkpointer(old_run / "checkpoints", run=run_id)
    newest = checkpointer.list()[0]
    reader = checkpointer.open(newest)
    runtime = decode(reader.file("runtime_state.msgpack.zst"), "here")
    assert (newest.step, runtime.step, len(runtime.reward_window)) == (released.UNTIL,) * 3
    assert len(bytes(reader.read("actor", Slice("w", (0,), (light.SIZE,))).data)) == 8 * light.SIZE


def test_an_older_run_is_not_changed_by_being_read(old_run: Path) -> None:
    before = {p: p.read_bytes() for p in old_run.rglob("*") if p.is_file()}
    CliRunner().invoke(app, ["verify", str(old_run)])
    CliRunner().invoke(app, ["status", str(old_run)])
    assert {p: p.read_bytes() for p in old_run.rglob("*") if p.is_file()} == before


# --- what a migration can do -----------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointReader:
    """A checkpoint of a schema with other names: ``policy/weight`` and ``sampler.msgpack``."""
    state = made.state(3)
    policy = [[replace(chunk, name="weight") for chunk in rank] for rank in state.tensors["actor"]]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "schema_version", lambda: SCHEMA_1)
        checkpointer = made.checkpointer(tmp_path)
        files = {"config.yaml": b"seed: 0\n", "sampler.msgpack": msgpack.packb({"offset": 12})}
        tensors = {"policy": policy, "optimizer": state.tensors["optimizer"]}
        ref = checkpointer.save(replace(state, tensors=tensors, files=files))
    return ShardedReader(LocalStorage(f"{tmp_path}/{ref.name}"), ref.step)


def with_epoch(read: ReadFile) -> bytes:
    fields = msgpack.unpackb(read("sampler.msgpack"))
    return bytes(msgpack.packb({**fields, "epoch": fields["offset"] // 5}))


TO_2 = Migration(
    "the policy is called actor, and the sampler's state says in which epoch it is",
    files={"runtime_state.msgpack": with_epoch},
    components={"actor": "policy"},
    tensors={("actor", "w"): "weight"},
)


def test_c13_renamed_files_components_and_tensors_are_found_under_their_new_names(old: CheckpointReader) -> None:
    reader = upgraded(old, steps={1: TO_2})
    assert msgpack.unpackb(reader.file("runtime_state.msgpack")) == {"offset": 12, "epoch": 2}
    assert reader.file("config.yaml") == b"seed: 0\n"
    piece = reader.read("actor", Slice("w", (2, 0), (3, 4)))
    assert (piece.name, bytes(piece.data)) == ("w", made.weights(3)[2:5].tobytes())
    moment = np.frombuffer(bytes(reader.read("optimizer", Slice("m", (0, 0), (6, 4))).data), np.float32)
    assert moment.tobytes() == (made.weights(3) / 7).tobytes()
    assert reader.step == 3


def test_c13_a_run_reads_an_old_checkpoint_through_its_migrations(
    tmp_path: Path, old: CheckpointReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = made.checkpointer(tmp_path)
    monkeypatch.setattr(schema.upgraded, "__defaults__", (schema.FILE, {1: TO_2}))
    reader = checkpointer.open(checkpointer.list()[0])
    assert msgpack.unpackb(reader.file("runtime_state.msgpack"))["epoch"] == 2
    assert bytes(reader.read("actor", Slice("w", (0, 0), (6, 4))).data) == made.weights(3).tobytes()


def test_migrations_follow_each_other(old: CheckpointReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "SCHEMA", 4)
    to_3 = Migration("moved", files={"state.msgpack": moved("runtime_state.msgpack")}, components={"student": "actor"})
    to_4 = Migration("named", tensors={("student", "kernel"): "w"}, files={"config.yml": moved("config.yaml")})
    reader = upgraded(old, steps={1: TO_2, 2: to_3, 3: to_4})
    assert msgpack.unpackb(reader.file("state.msgpack"))["epoch"] == 2
    assert reader.file("config.yml") == b"seed: 0\n"
    assert bytes(reader.read("student", Slice("kernel", (0, 0), (6, 4))).data) == made.weights(3).tobytes()


def test_todays_checkpoint_goes_through_no_migration(tmp_path: Path) -> None:
    checkpointer = made.checkpointer(tmp_path)
    reader = checkpointer.open(checkpointer.save(made.state(1)))
    assert upgraded(reader, steps={}) is reader


def test_c13_a_state_that_cannot_be_migrated_is_an_error_that_names_it(old: CheckpointReader) -> None:
    def fails(read: ReadFile) -> bytes:
        return bytes(msgpack.unpackb(read("sampler.msgpack"))["cursor"])

    def absent(read: ReadFile) -> bytes:
        return read("cursor.msgpack")

    reader = upgraded(old, "step_000003/schema_version.json", {1: Migration("x", {"a": fails, "b": absent})})
    with pytest.raises(DamagedCheckpoint) as caught:
        reader.file("a")
    assert caught.value.where == "step_000003/schema_version.json, schema 1 → 2"
    assert caught.value.what == "a cannot be migrated: KeyError: 'cursor'"
    with pytest.raises(ObjectMissing):
        reader.file("b")


def test_without_its_migration_nothing_of_an_old_checkpoint_is_ignored_silently(old: CheckpointReader) -> None:
    with pytest.raises(ObjectMissing):
        upgraded(old, steps={1: Migration("nothing")}).file("runtime_state.msgpack")
    with pytest.raises((DamagedCheckpoint, ObjectMissing)):
        upgraded(old, steps={1: Migration("nothing")}).read("actor", Slice("w", (0, 0), (6, 4)))


def test_a_newer_checkpoint_in_a_run_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = made.checkpointer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "schema_version", lambda: SCHEMA_1.replace(b'"format"', b'"schema": 99, "format"'))
        ref = checkpointer.save(made.state(3))
    checkpointer.verify(ref)
    with pytest.raises(RunMismatch, match="schema 99 is newer than"):
        checkpointer.open(ref)
