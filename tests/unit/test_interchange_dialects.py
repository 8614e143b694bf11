"""Configs of other dialects: every key is taken over or told, with its line; nothing that means something else passes
in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from verl_core.cli.config import resume_asked
from verl_core.config.aliases import ADAPTIVE, INTERVAL, VERL_DEFAULTS
from verl_core.config.schema import Config

from tests.support.dialects import ARTICLE_FILE, VERL_FILE, keys, translated


def leaves(text: str) -> set[str]:
    def walk(tree: Any, prefix: str = "") -> Any:
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"

    return set(walk(yaml.safe_load(text)))


# --- the two dialects -------------------------------------------------------------------------


@pytest.mark.parametrize("text", [VERL_FILE, ARTICLE_FILE], ids=["verl", "article"])
def test_every_key_is_ours_or_told_with_its_line(text: str) -> None:
    done = translated(text)
    lines = text.splitlines()
    for told in done.told:
        if told.place:
            number = int(told.place.removeprefix("f.yaml:"))
            assert told.key.rpartition(".")[2] in lines[number - 1], told
            assert told.outcome in ("taken", "holds") or told.says, told
    empty = {"train.resume_from"}  # null: nothing was asked for
    assert {told.key for told in done.told if told.place} | set(done.places) >= leaves(text) - empty
    assert done.of("unknown") == []


def test_verl_keys_arrive_under_our_names() -> None:
    found = keys(translated(VERL_FILE))
    assert (
        found
        | {
            "data.train_files": ["/data/train.parquet", "/data/more.parquet"],
            "data.val_files": "/data/test.parquet",
            "data.prompt_key": "prompt",
            "data.max_prompt_length": 512,
            "data.max_response_length": 1024,
            "training.prompts_per_step": 64,
            "training.micro_batch_size": 8,
            "training.optim.lr": 1e-6,
            "training.eval_interval_steps": 5,
            INTERVAL: 20,
            "model.actor.path": "/models/actor",
            "algorithm.name": "grpo",
            "algorithm.clip_ratio_low": 0.2,
            "algorithm.clip_ratio_high": 0.28,
            "rollout.name": "hf",
            "rollout.n": 16,
            "rollout.temperature": 0.9,
            "rollout.max_num_seqs": 1024,
            "plugins": ["hf"],
            "total_epochs": 3,
            "total_steps": 200,
            "distributed.train_ranks": 1,
            "distributed.gpu_uuids": ["GPU-1"],
        }
        == found
    )


def test_what_belongs_on_the_command_line_is_said_so() -> None:
    done = translated(VERL_FILE)
    assert [told.option for told in done.of("option")] == [("--run-dir", "checkpoints/gsm8k/first")]
    assert any("verl-core import" in told.says for told in done.of("none") if told.key == "trainer.resume_from_path")


@pytest.mark.parametrize(
    ("text", "resume"),
    [
        ("train: {resume_from: runs/a/checkpoints/step_000004}", "runs/a/checkpoints/step_000004"),
        ("train: {resume_from: null, total_steps: 3}", "auto"),
        ("train: {resume_from_step: 4}", "4"),
        ("resume_from_step: auto", "auto"),
        ("trainer: {resume_mode: disable}", "never"),
        ("trainer: {resume_mode: auto}", "auto"),
        (
            "trainer: {resume_mode: resume_path, resume_from_path: /r/checkpoints/step_000010}",
            "/r/checkpoints/step_000010",
        ),
        ("trainer: {resume_mode: resume_path, resume_from_path: /ckpt/global_step_10}", "auto"),
        ("total_steps: 3", "auto"),
    ],
)
def test_a_file_may_say_where_to_go_on(tmp_path: Path, text: str, resume: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert resume_asked(str(tmp_path / "f.yaml")) == resume


def test_article_keys_arrive_under_our_names() -> None:
    found = keys(translated(ARTICLE_FILE))
    assert found["total_steps"] == 10000
    assert found[INTERVAL] == 1000
    assert found[f"{ADAPTIVE}.enabled"] is True
    phases = [{"steps": 0, "interval": 500}, {"steps": 5000, "interval": 1000}, {"steps": 20000, "interval": 2000}]
    assert found[f"{ADAPTIVE}.intervals"] == phases
    assert found["model.actor.path"] == "Qwen/Qwen2-1.5B"
    reward = {key: value for key, value in found.items() if key.startswith("model.reward.")}
    path = "meta-llama/Llama-3-8B-Instruct"
    assert reward == {
        "model.reward.name": "sequence_classifier", "model.reward.path": path, "model.reward.dtype": "bfloat16"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("actor_rollout_ref: {actor: {ppo_mini_batch_size: 16}}", "ppo_mini_batch_size", "one update"),
        ("actor_rollout_ref: {actor: {use_kl_loss: true}}", "use_kl_loss", "KL"),
        ("actor_rollout_ref: {actor: {ppo_epochs: 4}}", "ppo_epochs", "once"),
        ("actor_rollout_ref: {actor: {loss_agg_mode: seq-mean-token-sum}}", "loss_agg_mode", "mean over all"),
        ("actor_rollout_ref: {rollout: {name: vllm}}", "rollout.name", "'vllm' is installed"),
        ("actor_rollout_ref: {rollout: {tensor_model_parallel_size: 2}}", "tensor_model_parallel_size", "one device"),
        ("trainer: {n_gpus_per_node: 8, nnodes: 2}", "n_gpus_per_node", "train_ranks=16"),
        ("trainer: {logger: [console, wandb]}", "logger", "wandb"),
        ("trainer: {save_freq: -1}", "save_freq", "always saves"),
        ("reward_model: {enable: true}", "enable", "model.reward.name"),
        ("train: {async_checkpoint: false}", "async_checkpoint", "no other way"),
        ("train: {total_steps: 1}\ndistributed: {world_size: 4}", "world_size", "train_ranks=4"),
    ],
)  # fmt: skip
def test_a_value_that_means_something_else_here_is_said_so(text: str, key: str, hint: str) -> None:
    told = [told for told in translated(text).of("differs") if told.key.endswith(key)]
    assert [hint in each.says for each in told] == [True]


def test_values_that_hold_here_anyway_are_not_worth_a_word() -> None:
    text = """\
actor_rollout_ref:
  actor: {use_kl_loss: false, ppo_epochs: 1, loss_agg_mode: token-mean, entropy_coeff: 0, strategy: fsdp2}
  rollout: {tensor_model_parallel_size: 1, top_k: -1}
trainer: {resume_mode: auto, logger: [console], test_freq: -1}
train: {async_checkpoint: true}
"""
    done = translated(text)
    assert [told for told in done.told if told.place and told.says] == []
    assert keys(done)["rollout.top_k"] == 0
    assert keys(done)["training.eval_interval_steps"] == 0


def test_plugins_that_are_installed_are_chosen_and_loaded() -> None:
    text = (
        "actor_rollout_ref: {rollout: {name: vllm}}\ntrainer: {logger: [console, tensorboard, wandb]}\nplugins: [nfs]"
    )
    done = translated(text, installed=("vllm", "tensorboard"))
    assert keys(done)["rollout.name"] == "vllm"
    assert keys(done)["monitoring.sinks"] == ["tensorboard"]
    assert sorted(keys(done)["plugins"]) == ["nfs", "tensorboard", "vllm"]
    assert [told.says for told in done.of("differs") if told.place] == ["no sink is installed for wandb"]


def test_unknown_keys_are_listed_with_the_nearest_known_one() -> None:
    done = translated("trainer:\n  total_epoch: 3\n  nonsense: 1\ndata:\n  max_promt_length: 5\n")
    told = {each.key: str(each) for each in done.of("unknown")}
    assert (
        told["trainer.total_epoch"] == "f.yaml:2: trainer.total_epoch: unknown key; did you mean trainer.total_epochs?"
    )
    assert told["trainer.nonsense"] == "f.yaml:3: trainer.nonsense: unknown key"
    assert told["data.max_promt_length"].startswith("f.yaml:5: ")
    assert done.tree == {}, "a guess is not taken"


def test_the_special_key_wins_over_the_general_one_in_any_order() -> None:
    for body in ("{clip_ratio: 0.3, clip_ratio_low: 0.1}", "{clip_ratio_low: 0.1, clip_ratio: 0.3}"):
        found = keys(translated(f"actor_rollout_ref: {{actor: {body}}}"))
        assert (found["algorithm.clip_ratio_low"], found["algorithm.clip_ratio_high"]) == (0.1, 0.3)
    text = "data: {micro_batch_size_per_gpu: 4}\nactor_rollout_ref: {actor: {ppo_micro_batch_size_per_gpu: 8}}"
    assert keys(translated(text))["training.micro_batch_size"] == 8


# --- what a file leaves out -------------------------------------------------------------------


@pytest.mark.parametrize(("size", "batch"), [(100, 25), (64, None), (7, 7), (1, 1), (1024, None), (31 * 37, 31)])
def test_a_batch_that_divides_the_step_is_chosen(size: int, batch: int | None) -> None:
    done = translated(f"data: {{train_batch_size: {size}}}")
    chosen = OmegaConf.select(OmegaConf.create(done.tree), "rollout.prompts_per_batch")
    assert chosen == batch
    assert size % (chosen or Config().rollout.prompts_per_batch) == 0


def test_epochs_alone_are_not_cut_short_by_the_default_number_of_steps() -> None:
    done = translated("trainer: {total_epochs: 15, total_training_steps: null}")
    assert done.tree["total_epochs"] == 15
    assert int(str(done.tree["total_steps"])) > 100_000
    schedule = "actor_rollout_ref: {actor: {optim: {warmup_style: cosine}}}\ntrainer: {total_epochs: 15}"
    assert any("learning rate" in told.says for told in translated(schedule).told if told.key == "total_steps")


def test_defaults_that_differ_are_told_unless_the_file_sets_them() -> None:
    bare = {told.key: told.says for told in translated("trainer: {nnodes: 1}").of("differs")}
    assert "512" in bare["data.max_response_length"]
    assert {"rollout.n", "model.reward.name"} <= bare.keys()
    full = translated(VERL_FILE.replace("data:\n", "model: {reward: {name: gsm8k}}\ndata:\n", 1))
    assert {told.key for told in full.of("differs") if not told.place} <= {"training.optim.weight_decay"}
    assert not {told.key for told in translated(ARTICLE_FILE).told if not told.place} & VERL_DEFAULTS.keys()
