"""How configs of other dialects are read: references, a start with such a file, and the tables of rules."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl_core.config import load_config, read_config
from verl_core.config.aliases import ARTICLE, BLOCKS, VERL
from verl_core.config.compose import parse_yaml
from verl_core.config.native import native
from verl_core.config.options import check_options
from verl_core.config.translate import is_foreign
from verl_core.errors import ConfigError, VerlError
from verl_core.plugins import load

from tests.support.dialects import VERL_FILE, keys, translated

# --- references -------------------------------------------------------------------------------


def test_references_follow_their_keys_and_the_environment_stays_a_reference() -> None:
    text = """\
data: {max_prompt_length: 128, max_response_length: "${data.max_prompt_length}", train_files: ["${oc.env:D}/a.jsonl"]}
actor_rollout_ref:
  model: {path: "${oc.env:MODEL,/m}/${trainer.experiment_name}"}
  actor: {ppo_mini_batch_size: "${oc.select:data.train_batch_size,64}"}
trainer: {experiment_name: one, total_epochs: "${nowhere}"}
"""
    with pytest.raises(ConfigError, match=r"f\.yaml:5: trainer\.total_epochs: refers to a key"):
        translated(text)
    found = keys(translated(text.replace("${nowhere}", "3")))
    assert found["data.max_response_length"] == 128
    assert OmegaConf.to_container(found["data.train_files"]) == ["${oc.env:D}/a.jsonl"]
    raw = translated(text.replace("${nowhere}", "3")).tree["model"]
    assert raw == {"actor": {"path": "${oc.env:MODEL,/m}/one"}}


def test_references_below_blocks_that_are_not_read_may_lead_anywhere() -> None:
    done = translated("hydra: {run: {dir: '${now:%Y}'}}\ncritic: {optim: {lr: '${gone}'}}\ntrainer: {total_epochs: 2}")
    assert [told.key for told in done.of("none")] == ["hydra.run.dir", "critic.optim.lr"]


def test_a_password_in_a_path_is_not_shown() -> None:
    done = translated("trainer: {default_local_dir: 's3://user:hunter2@host/run'}")
    assert "hunter2" not in str([str(told) for told in done.told])


# --- a start with such a file -----------------------------------------------------------------


def test_a_start_understands_a_foreign_file_and_warns_of_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "verl.yaml").write_text(VERL_FILE)
    with caplog.at_level(logging.WARNING, "verl.config"):
        config = load_config(str(tmp_path / "verl.yaml"), ["actor_rollout_ref.rollout.n=4", "trainer.total_epochs=2"])
    assert (config.rollout.n, config.total_epochs, config.training.prompts_per_step) == (4, 2, 64)
    assert config.algorithm.options["clip_ratio_high"] == 0.28
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert (
        f"{tmp_path}/verl.yaml:19: actor_rollout_ref.actor.kl_loss_coef: neither loss nor reward has a KL term" in text
    )
    assert "max_prompt_length" not in text


def test_a_start_refuses_unknown_keys_of_a_foreign_file_by_line(tmp_path: Path) -> None:
    (tmp_path / "verl.yaml").write_text("actor_rollout_ref: {model: {path: /m}}\ntrainer:\n  nonsense: 1\n")
    with pytest.raises(ConfigError, match=r"verl\.yaml:3: trainer\.nonsense: unknown key"):
        load_config(str(tmp_path / "verl.yaml"), ["data.train_files=[/d]"])


def test_a_native_file_is_not_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "model: {actor: {path: /m}}\nalgorithm: {gamma: 0.9}\ndistributed: {backend: x}\n"
    text += "data: {task_options: {a: {b: 1}}}\n"
    (tmp_path / "ours.yaml").write_text(text)
    assert not is_foreign(parse_yaml(text, "ours.yaml")[0])
    loaded = read_config(str(tmp_path / "ours.yaml"), ["data.train_files=[/d]"])
    assert loaded.config.algorithm.options == {"gamma": 0.9}
    assert loaded.config.distributed.options == {"backend": "x"}
    assert loaded.config.data.task_options == {"a": {"b": 1}}
    assert caplog.records == []


def test_a_native_file_with_pasted_keys_of_verl_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("model: {actor: {path: /m}}\ntotal_steps: 7\nrollout: {prompts_per_batch: 8}\n")
    pasted = ["data.train_batch_size=24", "trainer.total_epochs=9", "data.train_files=[d.jsonl]"]
    config = load_config(str(tmp_path / "ours.yaml"), pasted)
    assert (config.training.prompts_per_step, config.rollout.prompts_per_batch) == (24, 8)
    assert (config.total_steps, config.total_epochs) == (7, 9)
    assert config.data.train_files == [str(Path.cwd() / "d.jsonl")]


# --- the tables -------------------------------------------------------------------------------


def test_rules_set_only_keys_that_exist() -> None:
    samples: dict[str, Any] = {"adv_estimator": "grpo", "strategy": "fsdp", "name": "hf", "logger": ["log"]}
    for key, rule in {**VERL, **ARTICLE}.items():
        for value in (samples.get(key.rpartition(".")[2], 1), True, 1):
            for name in rule(value, {}, frozenset({"fsdp", "hf", "log", "1", "True"})).keys:
                assert native(name) is not None, f"{key} sets {name}"


def test_options_that_rules_set_are_options_of_the_built_in_plugins() -> None:
    base = {"model": {"actor": {"path": "/m"}}, "data": {"train_files": ["/d"]}}
    done = translated(VERL_FILE)
    config = load_config(None, base={**base, "algorithm": done.tree["algorithm"], "training": done.tree["training"]})
    extra = load_config(None, ["training.activation_checkpointing=true", "algorithm.normalize_std=false"], base=base)
    for each in (config, extra):
        assert check_options(each, load([]).registry) == []


def test_no_rule_is_shadowed_by_a_block() -> None:
    assert all(native(block) in (None, "option") for block in BLOCKS)


def test_errors_of_a_translation_are_input_errors() -> None:
    with pytest.raises(VerlError) as caught:
        translated("trainer: {total_epochs: '${a.b}'}")
    assert caught.value.exit_code == 2
