"""Bad input: one clear line each, exit code 2, nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_core.cli.main import main

from tests.support import runs
from tests.support.tiny import Tiny


def model_copy(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.model, tmp_path / "other-model"))


def remote_code(tiny: Tiny, tmp_path: Path) -> list[str]:
    model = model_copy(tiny, tmp_path)
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (model / "config.json").write_text(json.dumps(config))
    return ["--set", f"model.actor.path={model}"]


def a_pickle(tiny: Tiny, tmp_path: Path) -> list[str]:
    model = model_copy(tiny, tmp_path)
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    return ["--set", f"model.actor.path={model}"]


def data(text: str) -> Callable[[Tiny, Path], list[str]]:
    def make(tiny: Tiny, tmp_path: Path) -> list[str]:
        (tmp_path / "bad.jsonl").write_text(text)
        return ["--set", f"data.train_files=[{tmp_path / 'bad.jsonl'}]"]

    return make


def given(*overrides: str) -> Callable[[Tiny, Path], list[str]]:
    return lambda tiny, tmp_path: [part for o in overrides for part in ("--set", o)]


CASES: dict[str, tuple[Callable[[Tiny, Path], list[str]], str]] = {
    "missing data": (given("data.train_files=[/nowhere/x.jsonl]"), "/nowhere/x.jsonl: does not exist"),
    "missing model": (given("model.actor.path=/nowhere/model"), "/nowhere/model"),
    "wrong key": (given("rollout.prompts_per_bach=4"), "did you mean 'prompts_per_batch'"),
    "wrong key of the schema": (given("data.train_fles=[x]"), "did you mean 'train_files'"),
    "wrong type": (given("total_steps=ten"), "'ten' is not a whole number"),
    "sizes that do not divide": (given("training.prompts_per_step=6"), "prompts_per_step"),
    "two findings at once": (given("training.prompts_per_step=6", "rollout.temperature=-1"), "rollout.temperature"),
    "unknown engine": (given("rollout.name=vlm"), "vlm"),
    "unknown reward": (given("model.reward.name=exact_mtch"), "exact_match"),
    "reward function that is not there": (given("model.reward.name=json:scores"), "json"),
    "malformed line": (data('{"prompt": "ab>", "answer": "ab"}\n{"prompt": \n'), "bad.jsonl:2"),
    "empty file": (data(""), "bad.jsonl"),
    "missing column": (data('{"question": "ab>", "answer": "ab"}\n'), "'prompt'"),
    "prompt too long": (data('{"prompt": "' + "a" * 40 + '>", "answer": "ab"}\n'), "bad.jsonl"),
    "remote code": (remote_code, "auto_map"),
    "a pickle": (a_pickle, "safetensors"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_clear_error_and_nothing_is_written(
    tiny: Tiny, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = CASES[case]
    run = tmp_path / "run"
    arguments = ["run", "--config", tiny.config(8), "--run-dir", run, *make(tiny, tmp_path)]
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    errors = capsys.readouterr().err
    assert left.value.code == 2, errors
    assert expected in errors
    assert errors.startswith("error: ")
    assert not run.exists()


def test_a_process_of_its_own_leaves_with_code_2_and_without_a_traceback(tiny: Tiny, tmp_path: Path) -> None:
    result = runs.cli("run", "--config", tiny.config(8), "--run-dir", tmp_path / "run", "--set", "total_steps=ten")
    assert (result.code, result.err.count("\n"), "Traceback" in result.err) == (2, 1, False)


def test_a_relative_path_in_a_config_file_is_refused_with_the_remedy(tiny: Tiny, tmp_path: Path) -> None:
    config = tmp_path / "relative.yaml"
    config.write_text(tiny.config(8).read_text().replace(str(tiny.data), "sort.jsonl"))
    result = runs.cli("run", "--config", config, "--run-dir", tmp_path / "run")
    assert result.code == 2
    assert "relative path 'sort.jsonl'" in result.err
    assert "write it absolute" in result.err


def test_an_unreadable_config_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("seed: [1\n")
    for name, expected in (("bad.yaml", "not valid YAML"), ("none.yaml", "no such config file")):
        result = runs.cli("run", "--config", tmp_path / name, "--run-dir", tmp_path / "run")
        assert (result.code, expected in result.err) == (2, True)


def test_a_changed_config_and_changed_data_are_refused_on_resume(tiny: Tiny, undisturbed: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    base = ("run", "--config", tiny.config(8), "--run-dir", run, "--set", "total_steps=9")
    result = runs.cli(*base, "--set", "rollout.n=8")
    assert (result.code, "rollout.n: 4 → 8" in result.err) == (2, True)
    other = tmp_path / "other.jsonl"
    other.write_text(tiny.data.read_text() + '{"prompt": "abcde>", "answer": "abcde"}\n')
    result = runs.cli(*base, "--set", f"data.train_files=[{other}]")
    assert (result.code, "--force-resume" in result.err) == (2, True)
    result = runs.cli(*base, "--resume", "never")
    assert (result.code, "holds a run at step 8" in result.err) == (2, True)


def test_a_planted_secret_reaches_no_file_and_no_output(tiny: Tiny, tmp_path: Path) -> None:
    secret = "s3cr3t-value-that-must-not-leak"
    config = tmp_path / "secret.yaml"
    config.write_text(tiny.config(2).read_text() + 'monitoring: {log: {webhook_token: "${oc.env:PLANTED_TOKEN}"}}\n')
    for arguments in (["--dry-run"], []):
        result = runs.cli(
            "run", "--config", config, "--run-dir", tmp_path / "run", *arguments, env={"PLANTED_TOKEN": secret}
        )
        assert secret not in result.out + result.err
    for file in (tmp_path / "run").rglob("*") if (tmp_path / "run").exists() else []:
        assert not file.is_file() or secret.encode() not in file.read_bytes()
