"""Every place that a run writes to is tried before the start, and nothing of the trial is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from verl_core.config import bounded as bounded_module
from verl_core.config import load_config
from verl_core.config.bounded import bounded
from verl_core.config.findings import Finding
from verl_core.config.paths import check_paths
from verl_core.errors import (
    ConfigError,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageThrottled,
    StorageTimeout,
    StorageUnavailable,
    VerlError,
)
from verl_core.health import stores
from verl_core.health.stores import check_stores
from verl_core.protocols import Storage
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.types import BuildContext, Bytes
from verl_core_storage.local import LocalConfig, build_local


def open_local(uri: str) -> Storage:
    return build_local(LocalConfig(), BuildContext(uri=uri))


def found(
    open_at: Callable[[str], Storage] = open_local, run_dir: str | None = None, *overrides: str
) -> tuple[list[VerlError], list[str]]:
    config = load_config(None, ["model.actor.path=/m", *overrides])
    results = list(check_stores(config, run_dir, open_at, {}))
    return [r for r in results if isinstance(r, VerlError)], [r for r in results if isinstance(r, str)]


# --- what is fine ----------------------------------------------------------------------------


def test_a_local_folder_that_is_not_there_yet_is_tried_in_the_one_above_and_not_made(tmp_path: Path) -> None:
    errors, facts = found(open_local, str(tmp_path / "a/b/run"))
    assert (errors, facts) == ([], [f"{tmp_path}/a/b/run: a file system with locks"])
    assert list(tmp_path.iterdir()) == []


def test_every_place_is_tried_by_its_key(tmp_path: Path) -> None:
    places = [f"storage.rollout_storage_uri=file://{tmp_path}/r", f"storage.checkpoint_uri={tmp_path}/c"]
    log = f"training.fault_tolerance.state_log_path={tmp_path}/logs/state_log.jsonl"
    _, facts = found(open_local, str(tmp_path / "run"), *places, log)
    assert [fact.rpartition(": ")[0] for fact in facts] == [
        f"{tmp_path}/run", f"file://{tmp_path}/r", f"{tmp_path}/c", f"{tmp_path}/logs"
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_an_object_store_says_what_it_can_do() -> None:
    store = MemoryObjects("memory://bucket")
    errors, facts = found(lambda uri: store, "memory://bucket/run")
    assert (errors, facts) == ([], ["memory://bucket/run: creates if absent, listings are consistent"])
    assert list(store.list()) == []


def test_what_is_known_to_be_wrong_is_not_tried(tmp_path: Path) -> None:
    config = load_config(None, ["model.actor.path=/m", "storage.checkpoint_uri=/proc/x"])
    assert list(check_stores(config, None, open_local, {}, skip=frozenset({"storage.checkpoint_uri"}))) == []


# --- what is not -----------------------------------------------------------------------------


class Broken(MemoryObjects):
    """Fails in one of its calls."""

    def __init__(self, failing: str, error: StorageError) -> None:
        super().__init__("memory://bucket")
        self.failing, self.error = failing, error

    def _maybe(self, name: str) -> None:
        if name == self.failing:
            raise self.error

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        self._maybe("put")
        return super().put(path, data, if_absent=if_absent)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self._maybe("get")
        return super().get(path, start, end) + (b"x" if self.failing == "other bytes" else b"")

    def delete(self, path: str) -> None:
        self._maybe("delete")
        if self.failing != "deletes nothing":
            super().delete(path)


@pytest.mark.parametrize("error", [StorageDenied("denied", remedy="a key"), StorageFull("full"), StorageReadOnly("ro")])
@pytest.mark.parametrize("failing", ["put", "get"])
def test_the_error_of_a_store_is_told_with_the_key_that_names_it(failing: str, error: StorageError) -> None:
    [told], facts = found(lambda uri: Broken(failing, error), None, "storage.checkpoint_uri=memory://bucket/c")
    assert (type(told), told.where, facts) == (type(error), "storage.checkpoint_uri", [])
    assert told.what == f"{error.what} (memory://bucket/c)"
    assert told.remedy == (error.remedy or "check permissions and mount, or give another place")


@pytest.mark.parametrize(
    ("error", "stood_in_for"),
    [
        (StorageUnavailable("refused"), True), (StorageTimeout("no answer"), True), (StorageThrottled("often"), True),
        (StorageDenied("denied"), False), (StorageFull("full"), False),
    ],
)  # fmt: skip
def test_copies_on_this_host_stand_in_for_a_store_of_checkpoints_that_is_down(
    error: StorageError, stood_in_for: bool
) -> None:
    at = ["storage.checkpoint_uri=memory://bucket/c", "storage.rollout_storage_uri=memory://bucket/r"]

    def results(begun: bool, *changes: str) -> list[VerlError | Finding | str]:
        config = load_config(None, ["model.actor.path=/m", *at, *changes])
        return list(check_stores(config, None, lambda uri: Broken("put", error), {}, begun=begun))

    copies = "backup.local_backup_dir=/copies"
    rollouts, checkpoints = results(True, copies)
    assert isinstance(rollouts, type(error))
    assert isinstance(checkpoints, Finding) == stood_in_for
    if isinstance(checkpoints, Finding):
        assert (checkpoints.key, checkpoints.warning) == ("storage.checkpoint_uri", True)
    for found in (*results(False, copies), *results(True)):
        assert isinstance(found, type(error)), "a run begins where all is there, and goes on only with copies"


@pytest.mark.parametrize(
    ("failing", "said"),
    [("other bytes", "gives back other bytes"), ("deletes nothing", "is still there"), ("delete", "is still there")],
)
def test_a_store_that_only_seems_to_work_is_found_out(failing: str, said: str) -> None:
    [told], _ = found(lambda uri: Broken(failing, StorageDenied("denied")), "memory://bucket")
    assert said in told.what


def test_a_store_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    def refused(uri: str) -> Storage:
        raise ConfigError("no such scheme", remedy="s3://")

    [told], _ = found(refused, "x://y")
    assert isinstance(told, ConfigError)
    assert str(told) == "--run-dir: no such scheme (x://y) — s3://"


def test_stores_on_which_two_controllers_could_overwrite_each_other_are_refused() -> None:
    store = MemoryObjects("memory://bucket", conditional_put=False)
    errors, _ = found(lambda uri: store, "memory://bucket/run")
    assert "the state log needs a file system with locks" in errors[0].what
    files = MemoryFiles("memory://log")
    errors, _ = found(
        lambda uri: files if "log" in uri else store,
        "memory://bucket/run",
        "training.fault_tolerance.state_log_path=memory://log/state_log.jsonl",
    )
    assert [error.what for error in errors] == ["--run-dir: this store ignores create-if-absent"]


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere: the file system of the kernel may not be written by anybody."""
    [told], _ = found(open_local, "/proc/run")
    assert (told.where, told.exit_code) == ("--run-dir", 1)


# --- stuck mounts ----------------------------------------------------------------------------


def test_a_look_that_never_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        bounded(gate.wait, 0.05)
    gate.set()
    assert bounded(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0)


def test_a_stuck_mount_is_a_finding_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, stat = threading.Event(), os.stat

    def stuck(path: str, *args: object, **kwargs: object) -> os.stat_result:
        if str(path).startswith("/mnt/stuck"):
            gate.wait()
        return stat(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stuck)
    monkeypatch.setattr(bounded_module, "ANSWER_S", 0.1)
    config = load_config(None, ["model.actor.path=/m", "data.train_files=[/mnt/stuck/x.jsonl]"])
    [finding] = check_paths(config)
    gate.set()
    assert (finding.key, finding.what) == ("data.train_files", "/mnt/stuck/x.jsonl: no answer within 0.1 s")
    assert "stuck" in finding.remedy


def test_a_stuck_store_is_told_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    class Stuck(MemoryObjects):
        def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
            gate.wait()
            return super().get(path, start, end)

    monkeypatch.setattr(stores, "TIMEOUT_S", 0.1)
    [told], _ = found(lambda uri: Stuck("memory://b"), "memory://b/run")
    gate.set()
    assert str(told).startswith("--run-dir: no answer within 0.1 s (memory://b/run) — ")


# --- passwords in URIs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["storage.rollout_storage_uri", "storage.checkpoint_uri", "training.fault_tolerance.state_log_path", "--run-dir"],
)
def test_a_uri_with_a_password_is_refused_since_it_would_be_everywhere(key: str) -> None:
    uri = "s3://key:hunter2-secret@bucket/run"
    overrides = [] if key == "--run-dir" else [f"{key}={uri}"]
    config = load_config(None, ["model.actor.path=/m", "data.task=a:b", *overrides])
    [finding] = check_paths(config, uri if key == "--run-dir" else None)
    assert (finding.key, finding.what) == (key, "a URI with a password or key in it")
    assert "hunter2" not in str(finding.error({}))
