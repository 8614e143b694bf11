"""What a start checks before it loads a model or writes a byte; and ``verl-core check``, which shows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner
from verl_core.cli import check as check_module
from verl_core.cli import findings as findings_module
from verl_core.config import inspect_config, load_config, read_config
from verl_core.config.options import check_options, options_of
from verl_core.errors import ModelError
from verl_core.registry import (
    ALERT_SINK,
    ALGORITHM,
    CHECKPOINTER,
    CLUSTER,
    KINDS,
    METRIC_SINK,
    RECOVERY,
    REWARD,
    ROLLOUT_ENGINE,
    STORAGE,
    TRAIN_ENGINE,
    WRITER,
    Registry,
)
from verl_core.types import BuildContext

from tests.support.tiny import Tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


@pytest.fixture
def good(tmp_path: Path, model: Path) -> list[str]:
    (tmp_path / "x.jsonl").write_text('{"prompt": "a"}\n')
    return [f"model.actor.path={model}", f"data.train_files=[{tmp_path}/x.jsonl]"]


# --- all together ----------------------------------------------------------------------------


def test_a_good_config_passes(good: list[str], tmp_path: Path) -> None:
    report = inspect_config(load_config(None, good), run_dir=str(tmp_path / "run"))
    assert (report.errors, report.warnings, report.wrong) == ((), (), frozenset())
    assert not (tmp_path / "run").exists()


def test_warnings_come_back(good: list[str]) -> None:
    [warning] = inspect_config(load_config(None, [*good, "rollout.max_num_seqs=1"])).warnings
    assert warning.where == "rollout.max_num_seqs"


def test_findings_of_every_sort_come_together_with_their_places(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "x.Y"}}))
    pins, file = tmp_path / "pins.txt", tmp_path / "run.yaml"
    pins.write_text("nothing-of-this-name==1\n")
    file.write_text(f"model: {{actor: {{path: {model}}}}}\ndata: {{train_files: [x.jsonl]}}\nrollout:\n  n: 1\n")
    changes = ["total_steps=0", f"frozen={pins}", "distributed.nccl.NCCL_IB_SL=99", "distributed.train_gpus=2"]
    loaded = read_config(str(file), changes)
    report = inspect_config(loaded.config, places=loaded.places)
    assert [f.where for f in report.errors[:5]] == [
        "--set total_steps",
        f"{file}:4: rollout.n",
        f"{file}:2: data.train_files",
        "--set distributed.nccl.NCCL_IB_SL",
        f"{pins}:1",
    ]
    assert isinstance(report.errors[5], ModelError)
    assert report.wrong >= {"total_steps", "rollout.n", "data.train_files", "distributed.nccl.NCCL_IB_SL"}
    assert "distributed.train_ranks" in [f.where for f in report.warnings]


def test_a_bad_model_path_is_reported_once() -> None:
    report = inspect_config(load_config(None, ["model.actor.path=org/name", "data.task=a:b"]))
    assert [e.where for e in report.errors] == ["model.actor.path"]


# --- options of plugins ----------------------------------------------------------------------


@dataclass(frozen=True)
class Grpo:
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2


@dataclass(frozen=True)
class Engine:
    gpu_share: float = 0.5


@dataclass(frozen=True)
class Writer:
    level: int = 1


@dataclass(frozen=True)
class Nothing:
    pass


def built(config: object, context: BuildContext, *_: object) -> object:
    return config


@pytest.fixture
def registry() -> Registry:
    made = Registry()
    made.register(ALGORITHM, "grpo", Grpo, built)
    made.register(ROLLOUT_ENGINE, "hf", Engine, built)
    made.register(WRITER, "atomic", Writer, built)
    made.register(ALERT_SINK, "log", Writer, built)
    made.register(METRIC_SINK, "log", Engine, built)
    for kind, name in ((TRAIN_ENGINE, "fsdp"), (CHECKPOINTER, "sharded"), (CLUSTER, "inline"), (STORAGE, "local")):
        made.register(kind, name, Nothing, built)
    made.register(REWARD, "exact_match", Nothing, built)
    made.register(RECOVERY, "retry", Nothing, built)
    return made


def option_errors(registry: Registry, *overrides: str) -> list[str]:
    loaded = read_config(None, ["model.actor.path=/m", *overrides])
    return [str(error) for error in check_options(loaded.config, registry, loaded.places)]


def test_options_that_a_chosen_provider_has_are_fine(registry: Registry) -> None:
    overrides = ["algorithm.clip_ratio_low=0.1", "rollout.gpu_share=0.9", "rollout.level=3"]
    assert option_errors(registry, *overrides, "monitoring.log={level: 2, gpu_share: 0.1}") == []


def test_a_block_that_serves_two_providers_is_split(registry: Registry) -> None:
    options = {"gpu_share": 0.9, "level": 3}
    assert options_of(registry, ROLLOUT_ENGINE, "hf", options) == {"gpu_share": 0.9}
    assert options_of(registry, WRITER, "atomic", options) == {"level": 3}


def test_an_unknown_option_is_compared_with_the_plugins_keys_and_the_blocks(registry: Registry) -> None:
    errors = option_errors(registry, "algorithm.clip_ratio_lo=0.1", "rollout.prompts_per_bach=3", "rollout.gpushare=1")
    assert errors == [
        "--set algorithm.clip_ratio_lo: unknown key — did you mean 'clip_ratio_low'?",
        "--set rollout.prompts_per_bach: unknown key — did you mean 'prompts_per_batch'?",
        "--set rollout.gpushare: unknown key — did you mean 'gpu_share'?",
    ]


def test_the_line_of_an_unknown_option_is_named(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: {actor: {path: /m}}\ntraining:\n  threads: 1\n  micro_bach_size: 4\n")
    loaded = read_config(str(file))
    [error] = check_options(loaded.config, registry, loaded.places)
    assert str(error) == f"{file}:4: training.micro_bach_size: unknown key — did you mean 'micro_batch_size'?"


def test_an_option_that_belongs_elsewhere_is_sent_home(registry: Registry) -> None:
    assert option_errors(registry, "rollout.lr=1") == [
        "--set rollout.lr: unknown key — it belongs to training.optim.lr"
    ]


def test_an_unknown_option_of_a_sink_is_named_as_written(registry: Registry) -> None:
    [error] = option_errors(registry, "monitoring.log.levl=5")
    assert error == "--set monitoring.log.levl: unknown key — did you mean 'level'?"


def test_an_option_of_a_wrong_type_is_an_error(registry: Registry) -> None:
    [error] = option_errors(registry, "rollout.level=high")
    assert "level" in error


def test_a_provider_that_no_loaded_plugin_offers_is_an_error(registry: Registry) -> None:
    errors = option_errors(
        registry, "algorithm.name=grop", "training.fault_tolerance.recovery=[rety]", "monitoring.sinks=[wecom]"
    )
    assert len(errors) == 3
    assert all("offers" in error for error in errors)
    assert "no loaded plugin offers" in option_errors(registry, "monitoring.wecom={url: x}")[0]
    assert len(option_errors(Registry(), "seed=1")) == len(KINDS) - 6


def test_options_of_a_sink_are_a_block(registry: Registry) -> None:
    assert option_errors(registry, "monitoring.log=5")[0].startswith("monitoring.log: a block of keys is expected")


# --- verl-core check -------------------------------------------------------------------------


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(check_module.check)
    return app


def test_check_says_what_is_fine_and_warns(command: typer.Typer, tiny: Tiny, tmp_path: Path) -> None:
    options = ["rollout.max_num_seqs=8", "training.fault_tolerance.severity_thresholds.train_nodes_lost=7"]
    arguments = ["--config", str(tiny.config(8)), "--run-dir", str(tmp_path / "run"), *(f"--set={o}" for o in options)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "warning: --set rollout.max_num_seqs" in done.output
    assert "training.fault_tolerance.severity_thresholds.train_nodes_lost: has no effect yet" in done.output
    assert "22 prompts are fine" in done.output
    assert not (tmp_path / "run").exists()


def test_check_reads_the_data_and_asks_for_the_device(command: typer.Typer, tiny: Tiny, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no json\n")
    for option, expected in ((f"data.train_files=[{bad}]", "bad.jsonl:1"), ("training.device=cuda", "no CUDA device")):
        done = CliRunner().invoke(command, ["--config", str(tiny.config(8)), f"--set={option}"])
        assert (done.exit_code, expected in done.output) == (2, True), done.output


def test_check_lists_all_findings_and_leaves_with_2(command: typer.Typer, good: list[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollout: {n: 1, prompts_per_bach: 3}\nstorage: {password: hunter2-secret}\ntotal_steps: 0\n")
    done = CliRunner().invoke(command, ["--config", str(file), *(f"--set={o}" for o in good)])
    assert done.exit_code == 2
    lines = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert any("rollout.prompts_per_bach: unknown key — did you mean 'prompts_per_batch'?" in line for line in lines)
    assert any(f"{file}:1: rollout.n" in line for line in lines)
    assert any(f"{file}:3: total_steps" in line for line in lines)
    assert "hunter2-secret" not in done.output


def test_check_lists_what_makes_a_config_unreadable(command: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("sed: 1\ntotl_steps: 2\n")
    done = CliRunner().invoke(command, ["--config", str(file)])
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 2


def test_check_names_a_plugin_that_is_not_installed(command: typer.Typer, good: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("")
    arguments = ["--config", str(tmp_path / "run.yaml"), "--plugins", "nosuch", *(f"--set={o}" for o in good)]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert "unknown plugin 'nosuch'" in done.output


def test_check_draws_a_table_on_a_terminal(
    command: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_module, "Console", partial(Console, force_terminal=True, width=200))
    (tmp_path / "run.yaml").write_text("sed: 1  # [bold]\n'a[red]b': 1\n")
    done = CliRunner().invoke(command, ["--config", str(tmp_path / "run.yaml")])
    assert done.exit_code == 2
    assert "what to do" in done.output
    assert "a[red]b" in done.output
