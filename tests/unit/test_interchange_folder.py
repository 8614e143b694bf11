"""C17: a folder counts as written once ``from_pretrained`` gives back every bit; whatever a writer loses is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from verl_core.checkpoint.digest import policy_digest
from verl_core.errors import DamagedError, InputError, ModelError
from verl_core.interchange.hf_folder import check_model, new_model_folder, parameter_shapes, write_model
from verl_core.types import TensorSums
from verl_core_engines.models import load_model
from verl_core_engines.tensors import tensor_sums

from tests.support.models import context_of, random_model

WEIGHTS = "model.safetensors"
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"tie_word_embeddings": True}),
    ("qwen3", {"tie_word_embeddings": False}),
    ("gpt2", {}),
    ("gemma", {}),
    ("llama", {}),
    ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
]


def actor_of(model: str, dtype: str = "float32") -> tuple[dict[str, torch.Tensor], str]:
    """The tensors that a run's training engine would hold, and their policy digest."""
    tensors = load_model(context_of(model, dtype=dtype), torch.device("cpu"), "sdpa").tensors
    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    return plain, policy_digest(tensor_sums(name, tensor) for name, tensor in plain.items())


def small_files(model: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(model).glob("*.json")}


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, TensorSums]]:
    """A folder with a tied model, as it was written."""
    model = random_model(tmp_path / "model", "qwen3", tie_word_embeddings=True)
    (tmp_path / "out").mkdir()
    return tmp_path / "out", write_model(tmp_path / "out", small_files(model), actor_of(model)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "changes"), KINDS, ids=[f"{kind}{len(changes)}" for kind, changes in KINDS])
def test_c17_what_is_written_comes_back_bit_for_bit(
    tmp_path: Path, kind: str, changes: dict[str, Any], dtype: str
) -> None:
    model = random_model(tmp_path / "model", kind, **changes)
    tensors, digest = actor_of(model, dtype)
    (tmp_path / "out").mkdir()
    sums = write_model(tmp_path / "out", small_files(model), tensors)
    assert check_model(tmp_path / "out", sums) == digest
    assert actor_of(str(tmp_path / "out"), dtype)[1] == digest, "an engine that starts from it has the same policy"
    original = {key for path in Path(model).glob("*.safetensors") for key in load_file(path)}
    assert set(load_file(tmp_path / "out" / WEIGHTS)) == original, (
        "names are those of the folder that the run began with"
    )
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config == {**json.loads((Path(model) / "config.json").read_text()), "dtype": dtype}


def test_other_files_stay_as_they_were_to_the_byte(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    files = {**small_files(model), "generation_config.json": b'{"eos_token_id": 2}', "tokenizer.json": b"{ }"}
    (tmp_path / "out").mkdir()
    write_model(tmp_path / "out", files, actor_of(model)[0])
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files


# --- planted damage ---------------------------------------------------------------------------


def lose_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def change_the_type_of_one(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].bfloat16()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def change_the_type_of_all(folder: Path) -> None:
    save_file({n: t.half() for n, t in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS, {"format": "pt"})


def say_another_type(folder: Path) -> None:
    rewrite_config(folder, dtype="bfloat16")


def untie_the_head(folder: Path) -> None:
    rewrite_config(folder, tie_word_embeddings=False)


def untie_the_head_with_weights(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, folder / WEIGHTS, {"format": "pt"}
    )
    untie_the_head(folder)


def swap_two_rows(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def add_a_tensor(folder: Path) -> None:
    save_file({**load_file(folder / WEIGHTS), "model.extra": torch.ones(2)}, folder / WEIGHTS, {"format": "pt"})


def flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def rewrite_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lose_a_tensor, "model.layers.1.mlp.up_proj.weight"),
        (change_the_type_of_one, "model.layers.0.mlp.up_proj.weight"),
        (change_the_type_of_all, "has other values"),
        (say_another_type, "has other values"),
        (untie_the_head, "lm_head.weight"),
        (untie_the_head_with_weights, "lm_head.weight"),
        (swap_two_rows, "model.embed_tokens.weight"),
        (add_a_tensor, "model.extra"),
        (flip_a_bit, "has other values"),
        (cut_short, "cannot be loaded"),
    ],
)
def test_c17_damage_behind_the_writer_is_named(
    written: tuple[Path, dict[str, TensorSums]], damage: Callable[[Path], None], named: str
) -> None:
    folder, sums = written
    check_model(folder, sums)
    damage(folder)
    with pytest.raises(DamagedError, match=named):
        check_model(folder, sums)


def test_c17_a_writer_that_loses_a_tensor_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(tmp_path / "model")
    honest = PreTrainedModel.save_pretrained

    def lossy(self: PreTrainedModel, folder: Path, **options: Any) -> None:
        honest(self, folder, **options)
        lose_a_tensor(Path(folder))

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", lossy)

    def fill(draft: Path) -> None:
        check_model(draft, write_model(draft, small_files(model), actor_of(model)[0]))

    with pytest.raises(DamagedError, match=r"up_proj\.weight"):
        new_model_folder(tmp_path / "out", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- what does not fit ------------------------------------------------------------------------


def test_tensors_of_another_model_are_refused_before_anything_is_saved(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "qwen3", tie_word_embeddings=True)
    tensors, files = actor_of(model)[0], small_files(model)
    embedding = tensors["model.embed_tokens.weight"]
    first = "model.layers.0.input_layernorm.weight"
    wrong: list[tuple[str, dict[str, torch.Tensor]]] = [
        ("describes no tensor model.layers.0.bias", {**tensors, "model.layers.0.bias": torch.ones(2)}),
        ("there is no tensor", {name: tensor for name, tensor in tensors.items() if name != first}),
        (r"is \(2,\), config.json wants \(32,\)", {**tensors, first: torch.ones(2)}),
        ("config.json ties lm_head.weight", {**tensors, "lm_head.weight": embedding + 1}),
    ]
    (tmp_path / "out").mkdir()
    for reason, given in wrong:
        with pytest.raises(ModelError, match=reason):
            write_model(tmp_path / "out", files, given)
    assert not (tmp_path / "out" / WEIGHTS).exists()


def test_tied_tensors_may_come_under_any_of_their_names(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "qwen3", tie_word_embeddings=True)
    tensors, digest = actor_of(model)
    embedding = tensors.pop("model.embed_tokens.weight")
    both = {**tensors, "model.embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
    for number, given in enumerate((both, {**tensors, "lm_head.weight": embedding})):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert check_model(folder, write_model(folder, small_files(model), given)) == digest
        assert "lm_head.weight" not in load_file(folder / WEIGHTS)


def test_a_config_that_wants_code_or_no_language_model_is_refused(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    tensors, files = actor_of(model)[0], small_files(model)
    for number, change in enumerate(({"model_type": "no_such"}, {"model_type": "resnet"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = json.dumps({**json.loads(files["config.json"]), **change}).encode()
        with pytest.raises(ModelError, match="no causal language model"):
            write_model(folder, {**files, "config.json": config}, tensors)


def test_parameters_are_listed_in_the_order_of_optimizers(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", "qwen3", tie_word_embeddings=True)
    loaded = AutoModelForCausalLM.from_pretrained(model)
    wanted = {name: tuple(parameter.shape) for name, parameter in loaded.named_parameters()}
    assert list(parameter_shapes(Path(model)).items()) == list(wanted.items())


# --- the folder -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_a_name_that_is_taken_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "folder":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is there already"):
        new_model_folder(target, lambda draft: None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_first_of_two_writers_keeps_the_name(tmp_path: Path) -> None:
    def fill(draft: Path) -> None:
        (draft / "mine").touch()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()

    with pytest.raises(InputError, match="is there already"):
        new_model_folder(tmp_path / "out", fill)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["out", "out/theirs"]
