from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from verl_core.config import Config, load_config
from verl_core.config.paths import check_paths, is_hub_name, network_file_system


def config_of(folder: Path, *overrides: str) -> Config:
    return load_config(None, [f"model.actor.path={folder}", "data.task=reasoning_gym:x", *overrides])


def keys(config: Config, run_dir: str | None = None) -> list[str]:
    return [f.key for f in check_paths(config, run_dir) if not f.warning]


def from_file(folder: Path, text: str) -> Config:
    file = folder / "run.yaml"
    file.write_text(text)
    return load_config(str(file), [f"model.actor.path={folder}"] if "actor" not in text else [])


def test_relative_paths_in_a_config_file_are_errors_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    config = from_file(
        tmp_path,
        """
        data: {train_files: [x.jsonl], val_files: [./x.jsonl]}
        model: {actor: {path: models/small/v1}}
        storage: {rollout_storage_uri: rollouts, checkpoint_uri: "file://ck"}
        training: {fault_tolerance: {state_log_path: log.jsonl}}
        backup: {local_backup_dir: ../b}
        """,
    )
    found = check_paths(config)
    assert [f.key for f in found] == [
        "data.train_files",
        "data.val_files",
        "model.actor.path",
        "storage.rollout_storage_uri",
        "storage.checkpoint_uri",
        "training.fault_tolerance.state_log_path",
        "backup.local_backup_dir",
    ]
    assert all("write it absolute, or pass it with --set" in f.remedy for f in found)


def test_paths_after_set_are_made_absolute_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m" / "v").mkdir(parents=True)
    overrides = ["data.train_files=[x.jsonl, 'd/*.jsonl', /abs]", "model.actor.path=m/v", "backup.local_backup_dir=b"]
    config = load_config(None, [*overrides, "rollout_storage_uri=r", "storage.checkpoint_uri=s3://bucket/c"])
    assert config.data.train_files == [f"{tmp_path}/x.jsonl", f"{tmp_path}/d/*.jsonl", "/abs"]
    assert (config.model.actor.path, config.backup.local_backup_dir) == (f"{tmp_path}/m/v", f"{tmp_path}/b")
    assert (config.storage.rollout_storage_uri, config.storage.checkpoint_uri) == (f"{tmp_path}/r", "s3://bucket/c")


def test_paths_of_a_call_are_made_absolute_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(None, base={"model": {"actor": {"path": "."}}, "data": {"train_files": "x.jsonl"}})
    assert (config.model.actor.path, config.data.train_files) == (str(tmp_path), [f"{tmp_path}/x.jsonl"])


def test_the_home_folder_counts_as_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.jsonl").write_text("{}\n")
    config = from_file(tmp_path, "data: {train_files: [~/x.jsonl]}\nmodel: {actor: {path: ~/m}}\n")
    assert (config.data.train_files, config.model.actor.path) == ([f"{tmp_path}/x.jsonl"], f"{tmp_path}/m")
    assert keys(config) == []


def test_a_path_is_absolute_after_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    monkeypatch.setenv("DATA", str(tmp_path))
    assert keys(from_file(tmp_path, "data: {train_files: ['${oc.env:DATA}/x.jsonl']}\n")) == []
    monkeypatch.setenv("DATA", "relative")
    assert keys(from_file(tmp_path, "data: {train_files: ['${oc.env:DATA}/x.jsonl']}\n")) == ["data.train_files"]


def test_a_hub_name_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for config in (
        load_config(None, ["model.actor.path=Qwen/Qwen2-1.5B", "data.task=t:x"]),
        from_file(tmp_path, "model: {actor: {path: Qwen/Qwen2-1.5B}}\ndata: {task: 't:x'}\n"),
    ):
        [found] = check_paths(config)
        assert found.what == "'Qwen/Qwen2-1.5B' is no folder here, but looks like a hub name"
        assert "download" in found.remedy
    assert not is_hub_name("/Qwen/Qwen2")
    assert not is_hub_name("a/b/c")
    assert not is_hub_name("./b")


@pytest.mark.parametrize("uri", ["s3://bucket/x", "oss://b/x"])
def test_uris_of_stores_are_not_paths(tmp_path: Path, uri: str) -> None:
    overrides = [f"rollout_storage_uri={uri}", f"training.fault_tolerance.state_log_path={uri}/log.jsonl"]
    assert keys(config_of(tmp_path, *overrides), run_dir=uri) == []


def test_a_model_by_uri_is_refused(tmp_path: Path) -> None:
    assert keys(config_of(tmp_path, "model.actor.path=s3://bucket/model")) == ["model.actor.path"]


def test_file_uris_are_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert keys(config_of(tmp_path, f"rollout_storage_uri=file://{tmp_path}/new")) == []
    assert keys(config_of(tmp_path, f"rollout_storage_uri=file://{tmp_path}/file/new")) == [
        "storage.rollout_storage_uri"
    ]


def data_finding(folder: Path, name: str) -> str:
    config = load_config(None, [f"model.actor.path={folder}", f"data.train_files=['{folder}/{name}']"])
    found = check_paths(config)
    return found[0].what if found else ""


def test_data_files_must_exist_and_be_readable(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text("{}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    assert [data_finding(tmp_path, name) for name in ("good.jsonl", "folder", "*.jsonl", "**/*.jsonl")] == [""] * 4
    assert data_finding(tmp_path, "none.jsonl") == f"{tmp_path}/none.jsonl: does not exist"
    assert data_finding(tmp_path, "*.parquet") == f"no file matches {tmp_path}/*.parquet"
    assert "cannot be read" in data_finding(tmp_path, "good.jsonl/below")
    assert "cannot be read" in data_finding(tmp_path, "loop")
    assert "neither a file nor a folder" in data_finding(tmp_path, "pipe")


def _as_nobody(folder: str, results: multiprocessing.SimpleQueue[list[str]]) -> None:
    os.setuid(65534)
    config = Config()
    config.data.train_files = [f"{folder}/secret.jsonl"]
    config.model.actor.path = folder
    config.backup.local_backup_dir = f"{folder}/backup"
    results.put([f.what for f in check_paths(config, f"{folder}/closed/run")])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_this_user_may_not_read_or_write_is_named() -> None:
    folder = Path(tempfile.mkdtemp())  # the test's own folder is closed to others
    folder.chmod(0o755)
    (folder / "secret.jsonl").touch(mode=0o600)
    (folder / "closed").mkdir(mode=0o755)
    try:
        context = multiprocessing.get_context("fork")
        results: multiprocessing.SimpleQueue[list[str]] = context.SimpleQueue()
        child = context.Process(target=_as_nobody, args=(str(folder), results))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert results.get() == [
            f"{folder}/secret.jsonl: cannot be read (Permission denied)",
            f"{folder} cannot be written",
            f"{folder}/closed cannot be written",
        ]
    finally:
        shutil.rmtree(folder)


def test_places_to_write_need_a_folder_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert keys(config_of(tmp_path), run_dir=str(tmp_path / "new" / "run")) == []
    assert keys(config_of(tmp_path), run_dir=str(tmp_path / "file" / "run")) == ["--run-dir"]
    assert keys(config_of(tmp_path), run_dir=str(tmp_path / "file")) == ["--run-dir"]
    assert keys(config_of(tmp_path, f"training.fault_tolerance.state_log_path={tmp_path}/file")) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dangling_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert keys(config_of(tmp_path), run_dir=str(tmp_path / "link")) == ["--run-dir"]


def test_a_network_file_system_is_told_by_the_mount_that_holds_the_path() -> None:
    mounts = [("/", "ext4"), ("/net", "nfs4"), ("/net/local", "xfs"), ("/network", "nfs")]
    assert network_file_system("/net/a/b", mounts) == "nfs4"
    assert network_file_system("/net/local/a", mounts) is None
    assert network_file_system("/netx", mounts) is None
    assert network_file_system("/home", mounts) is None
