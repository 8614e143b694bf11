"""Checkpoints in verl's layout: every bit arrives, and what is incomplete, mixed or doubtful is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_core.errors import DamagedError, InputError, ModelError, VerlError
from verl_core.interchange.verl_fsdp import find_source, import_model

from tests.support import verl_saves
from tests.support.verl_saves import Origin

TIED: dict[str, Any] = {"tie_word_embeddings": True}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("origin") / "model", **TIED)


def assert_same_weights(folder: Path, origin: Origin) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert loaded.keys() == origin.state.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in origin.state.items())


@pytest.mark.parametrize(("ranks", "replicas"), [(1, 1), (2, 1), (3, 1), (7, 1), (4, 2), (6, 3)])
def test_weights_and_moments_of_any_number_of_ranks_arrive_bit_for_bit(
    origin: Origin, tmp_path: Path, ranks: int, replicas: int
) -> None:
    origin.save(tmp_path / "global_step_3" / "actor", ranks=ranks, replicas=replicas)
    done = import_model(tmp_path / "global_step_3", tmp_path / "out")
    assert_same_weights(tmp_path / "out", origin)
    assert (done.world_size, done.tensors, done.no_moments) == (ranks, len(origin.parameters), "")
    assert done.moments is not None
    assert (done.moments.step, done.moments.parameters) == (verl_saves.STEP, len(origin.parameters))
    for name, tensor in origin.parameters.items():
        assert torch.equal(done.moments.tensors[f"exp_avg.{name}"], tensor / 7)
        assert torch.equal(done.moments.tensors[f"exp_avg_sq.{name}"], tensor * tensor)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("gemma", {}),
        ("qwen3", {"tie_word_embeddings": False}),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    ],
)
def test_every_architecture_arrives(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    origin = Origin(tmp_path / "model", kind, **changes)
    import_model(origin.save(tmp_path / "actor"), tmp_path / "out")
    assert_same_weights(tmp_path / "out", origin)


def test_the_type_of_the_weights_is_kept_and_stands_in_the_config(tmp_path: Path) -> None:
    """verl trains single-precision copies under a config that says bfloat16."""
    origin = Origin(tmp_path / "model")
    folder = origin.save(tmp_path / "actor")
    config = json.loads((folder / "huggingface/config.json").read_text())
    (folder / "huggingface/config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    import_model(folder, tmp_path / "out")
    assert_same_weights(tmp_path / "out", origin)
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float32"


def test_buffers_that_every_rank_holds_whole_are_taken_once(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "model")
    origin.save(tmp_path / "actor", buffers=("model.norm.weight",))
    import_model(tmp_path / "actor", tmp_path / "out", optimizer=False)
    assert_same_weights(tmp_path / "out", origin)


def test_the_layout_of_older_versions_is_known(origin: Origin, tmp_path: Path) -> None:
    folder = origin.save(tmp_path / "global_step_3" / "actor")
    (folder / "huggingface").rename(folder.parent / "actor_huggingface")
    (folder / "fsdp_config.json").unlink()
    import_model(folder, tmp_path / "out")
    assert_same_weights(tmp_path / "out", origin)


def test_only_config_and_tokenizer_are_taken_from_beside(origin: Origin, tmp_path: Path) -> None:
    folder = origin.save(tmp_path / "actor")
    (folder / "huggingface/tokenizer.json").write_text("{}")
    (folder / "huggingface/modeling_custom.py").write_text("print()")
    (folder / "huggingface/pytorch_model.bin").write_bytes(b"pickle")
    import_model(folder, tmp_path / "out", optimizer=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


# --- refusals ---------------------------------------------------------------------------------


def no_rank_1(folder: Path) -> None:
    (folder / "model_world_size_4_rank_1.pt").unlink()


def files_of_another_run(folder: Path) -> None:
    shutil.copy(folder / "model_world_size_4_rank_1.pt", folder / "model_world_size_2_rank_1.pt")


def a_rank_twice(folder: Path) -> None:
    shutil.copy(folder / "model_world_size_4_rank_0.pt", folder / "model_world_size_4_rank_1.pt")


def other_world_size(folder: Path) -> None:
    (folder / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 8}')


def adapter(folder: Path) -> None:
    (folder / "lora_adapter").mkdir()


def no_config(folder: Path) -> None:
    shutil.rmtree(folder / "huggingface")


def a_flipped_byte(folder: Path) -> None:
    path = folder / "model_world_size_4_rank_2.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut_short(folder: Path) -> None:
    path = folder / "model_world_size_4_rank_3.pt"
    path.write_bytes(path.read_bytes()[:-500])


def config_of_another_model(folder: Path) -> None:
    config = json.loads((folder / "huggingface/config.json").read_text())
    (folder / "huggingface/config.json").write_text(json.dumps({**config, "attention_bias": True}))


@pytest.mark.parametrize(
    ("damage", "kind", "named"),
    [
        (no_rank_1, DamagedError, "of 1 of 4 ranks are missing: 1"),
        (files_of_another_run, InputError, "with 2 and 4 ranks"),
        (a_rank_twice, DamagedError, "file of rank 1, tensor model.embed_tokens.weight: is of the rank at"),
        (other_world_size, DamagedError, "says 8 ranks"),
        (adapter, InputError, "LoRA"),
        (no_config, InputError, "no config.json"),
        (a_flipped_byte, DamagedError, r"rank_2\.pt"),
        (cut_short, InputError, r"rank_3\.pt"),
        (config_of_another_model, ModelError, r"there is no tensor .*\.bias"),
    ],
)
def test_c04_what_is_incomplete_or_mixed_is_refused_and_nothing_is_left(
    origin: Origin, tmp_path: Path, damage: Any, kind: type[VerlError], named: str
) -> None:
    folder = origin.save(tmp_path / "actor", ranks=4)
    damage(folder)
    with pytest.raises(kind, match=named):
        import_model(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["actor"]


def drop_one(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    if rank == 1:
        del model["model.norm.weight"]


def drop_everywhere(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    del model["model.norm.weight"]


def change_a_replica(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    if rank == 3:
        model["model.norm.weight"]._local_tensor.add_(1)


def untie(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    model["lm_head.weight"]._local_tensor.add_(1)


def partial(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    from torch.distributed.tensor import DTensor, Partial

    there = model["model.norm.weight"]
    model["model.norm.weight"] = DTensor.from_local(torch.ones(32), there.device_mesh, [Partial()] * 2, run_check=False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop_one, "do not hold the same tensors, first model.norm.weight"),
        (drop_everywhere, "there is no tensor model.norm.weight"),
        (change_a_replica, "model.norm.weight: ranks hold different values"),
        (untie, "config.json ties lm_head.weight to model.embed_tokens.weight"),
        (partial, "model.norm.weight: is placed as Partial"),
    ],
)
def test_c17_a_tensor_that_is_lost_diverged_or_untied_is_named(
    origin: Origin, tmp_path: Path, change: Any, named: str
) -> None:
    folder = origin.save(tmp_path / "actor", ranks=4, replicas=2, change=change)
    with pytest.raises(VerlError, match=named):
        import_model(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_fsdp_actor_is_told_apart(origin: Origin, tmp_path: Path) -> None:
    origin.save(tmp_path / "run" / "global_step_7" / "actor")
    (tmp_path / "megatron" / "dist_ckpt").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for path, named in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "empty", "no model_world_size_W_rank_R.pt"),
        (tmp_path / "run", "global_step_7/actor"),
        (tmp_path / "megatron", "Megatron"),
        (Path(origin.path), f"model.actor.path={origin.path}"),
    ):
        with pytest.raises(InputError, match=named):
            find_source(path)
