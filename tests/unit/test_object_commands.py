"""``status``, ``verify``, ``confirm`` and the config of a run that lies on an object store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest
import typer
from typer.testing import CliRunner
from verl_core import plugins as loader
from verl_core.checkpoint.sharded import ShardedConfig, build_sharded
from verl_core.cli import run as run_command
from verl_core.cli.confirm import confirm
from verl_core.cli.status import status
from verl_core.cli.verify import verify
from verl_core.errors import InputError, RunBusy, SafeModeError
from verl_core.observers import Observers
from verl_core.plugins import Loaded
from verl_core.registry import CHECKPOINTER, STORAGE, WRITER, Registry
from verl_core.rollout.writer import AtomicConfig, build_atomic
from verl_core.state.claim import write_controller
from verl_core.state.folder import LOG, open_run
from verl_core.state.journal import Journal, read_log
from verl_core.testing.memory import MemoryObjects
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalConfig

from tests.support.object_runs import RUN, controller

STEPS = 3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    """A finished run at ``RUN``, and a plugin that opens it."""
    store = MemoryObjects("memory://bucket")
    controller(lambda uri: store.child(uri.removeprefix("memory://bucket/")), STEPS).run()
    registry = Registry()
    build = lambda _, context: store.child(context.uri.removeprefix("memory://bucket/"))  # noqa: E731
    registry.register(STORAGE, "memory", LocalConfig, build)
    registry.register(WRITER, "atomic", AtomicConfig, build_atomic)
    registry.register(CHECKPOINTER, "sharded", ShardedConfig, build_sharded)

    def load(names: Iterable[str], defaults: bool = True) -> Loaded:
        assert "memory" in [*names]
        return Loaded(registry, Observers(), ())

    monkeypatch.setattr(loader, "load", load)
    monkeypatch.setattr(run_command, "load", load)
    return store


def invoke(command: object, *arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var]
    result = CliRunner().invoke(app, [*arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_status_reads_a_run_on_objects(store: MemoryObjects) -> None:
    code, out = invoke(status, RUN, "--json")
    facts = orjson.loads(out)
    assert code == 0
    assert (facts["state"], facts["step"], facts["batches_committed"], facts["pid"]) == ("DONE", STEPS, STEPS, None)
    before = len([*store.list()])
    assert f"in {RUN}" in invoke(status, RUN)[1]
    assert len([*store.list()]) == before, "nothing is written"


def test_verify_finds_damage_in_a_run_on_objects(store: MemoryObjects) -> None:
    code, out = invoke(verify, RUN)
    assert (code, out.splitlines()[-1]) == (0, "clean")
    store.put("run/rollouts/epoch_0/batch_1/samples.jsonl", b"damage")
    [shard] = [s.path for s in store.list("run/checkpoints") if "optimizer/shard" in s.path]
    store.put(shard, b"damage")
    code, out = invoke(verify, RUN)
    assert code == 4
    assert "batch_1/samples.jsonl" in out
    assert shard in out


def test_confirm_ends_safe_mode_on_objects_and_is_a_fence(store: MemoryObjects) -> None:
    root = store.child("run")
    run = open_run(root, root, LOG, resume="auto", code_version="0")
    writes = WriteQueue(patience_s=0)
    identity = (run.run_id, 0, run.attempt, run.nonce)
    journal = Journal(root, LOG, run.log, writes, identity=identity, wall=lambda: 1.5)
    journal.record("decision", "SAFE_MODE", {"fault": {}, "decision": {"action": "safe_mode", "reason": "a test"}})
    writes.barrier()
    with pytest.raises(RunBusy):
        invoke(confirm, RUN, "--name", "me", "--reason", "why")
    run.release()
    with pytest.raises(SafeModeError):
        open_run(root, root, LOG, resume="auto", code_version="0")
    code, out = invoke(confirm, RUN, "--name", "me", "--reason", "why")
    assert (code, "confirmed by me" in out) == (0, True)
    last = read_log(root, LOG).entries[-1]
    assert (last.event, last.state, last.nonce) == ("confirmed", "INIT", "confirm")
    journal.record("note", "SAFE_MODE", {})
    with pytest.raises(RunBusy, match="nonce confirm"):
        writes.barrier()
    open_run(root, root, LOG, resume="auto", code_version="0").release()


def test_a_run_on_objects_goes_on_with_its_own_config(store: MemoryObjects) -> None:
    path = Path(run_command.own_config(RUN, []))
    assert path.read_bytes() == store.get("run/config.yaml")
    with pytest.raises(InputError, match="holds no run"):
        run_command.own_config("memory://bucket/empty", [])


def test_status_says_who_is_at_work_on_this_host(store: MemoryObjects) -> None:
    write_controller(store.child("run"), attempt=2, nonce="n")
    assert "is at work" in invoke(status, RUN)[1]
