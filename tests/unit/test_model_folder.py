"""A model folder is held to be safe and complete before any model library looks at it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from verl_core.config.model_folder import check_model_folder


def put(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def put_weights(folder: Path, name: str) -> None:
    save_file({"w": np.arange(6, dtype=np.float32), "b": np.zeros(1, np.int64)}, folder / name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    put(tmp_path, "config.json", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
    put(tmp_path, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    put(tmp_path, "tokenizer.json", {"version": "1.0"})
    put_weights(tmp_path, "model.safetensors")
    return tmp_path


def the_error(folder: Path, *classes: str, allow_pickle: bool = False) -> str:
    [error] = check_model_folder(folder, allow_pickle=allow_pickle, extra_tokenizer_classes=classes)
    assert error.exit_code == 2
    assert error.remedy
    assert "\n" not in str(error)
    return str(error)


def test_a_complete_folder_is_fine(model: Path) -> None:
    assert check_model_folder(model) == []


def test_a_folder_without_a_tokenizer_config_is_fine(model: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    assert check_model_folder(model) == []


def test_a_missing_folder_and_a_file_are_named(tmp_path: Path) -> None:
    assert "does not exist" in the_error(tmp_path / "none")
    put(tmp_path, "file", "")
    assert "is not a folder" in the_error(tmp_path / "file")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    assert the_error(model).startswith(f"{model / name}: file is missing")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["{cut", "[1]", "\udc00"])
def test_a_malformed_file_is_named(model: Path, name: str, content: str) -> None:
    (model / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    assert the_error(model).startswith(f"{model / name}: ")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("key", ["auto_map", "custom_pipelines"])
def test_remote_code_is_refused(model: Path, name: str, key: str) -> None:
    put(model, "modeling_own.py", "raise SystemExit('must not run')")
    content = json.loads((model / name).read_text()) | {key: {"AutoModelForCausalLM": "modeling_own.Own"}}
    put(model, name, content)
    message = the_error(model)
    assert message.startswith(f"{model / name}: ")
    assert "modeling_own.Own" in message
    assert "remote code is never run" in message


def test_an_empty_auto_map_and_a_file_of_code_that_nothing_asks_for_are_harmless(model: Path) -> None:
    put(model, "config.json", {"model_type": "qwen3", "auto_map": {}})
    put(model, "convert.py", "print()")
    assert check_model_folder(model) == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "model.pkl"])
def test_a_pickle_is_refused_unless_asked_for(model: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)
    message = the_error(model)
    assert "the weights are a pickle" in message
    assert name in message
    assert "model.allow_pickle=true" in message
    assert check_model_folder(model, allow_pickle=True) == []


def test_a_pickle_beside_safetensors_is_not_read(model: Path) -> None:
    put(model, "training_args.bin", "pickle")
    put(model, "pytorch_model.bin", "pickle")
    assert check_model_folder(model) == []


def test_no_weights_are_an_error_even_with_pickles_allowed(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "no weights" in the_error(model)
    assert "no weights" in the_error(model, allow_pickle=True)


def test_every_shard_of_an_index_must_be_there(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-1-of-2.safetensors")
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    put(model, "model.safetensors.index.json", {"weight_map": shards})
    assert "weights are missing: model-2-of-2.safetensors" in the_error(model)
    put_weights(model, "model-2-of-2.safetensors")
    assert check_model_folder(model) == []
    put(model, "model.safetensors.index.json", {})
    assert "the index names none" in the_error(model)


@pytest.mark.parametrize("name", ["model-1.bin", "../elsewhere.safetensors", "/tmp/x.safetensors"])
def test_an_index_that_names_anything_but_safetensors_of_the_folder_is_refused(model: Path, name: str) -> None:
    put(model, "model-1.bin", "pickle")
    put(model, "model.safetensors.index.json", {"weight_map": {"a": name}})
    assert f"no safetensors of this folder: {name}" in the_error(model)


def test_weights_that_were_cut_short_anywhere_are_refused(model: Path) -> None:
    file = model / "model.safetensors"
    data = file.read_bytes()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        assert the_error(model).startswith(f"{file}: "), size
    file.write_bytes(data + b"x")
    assert f"{len(data) + 1} bytes, its header says {len(data)}" in the_error(model)


@pytest.mark.parametrize(
    "content", [b"weights of some kind", b"\x80\x04pickle" * 9, b"\xff" * 64, b"\x02" + b"\0" * 7 + b"[]"]
)
def test_a_file_that_only_is_called_safetensors_is_refused(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    assert "not a safetensors file" in the_error(model)


def test_a_cut_shard_of_an_index_is_named(model: Path) -> None:
    put_weights(model, "model-1-of-1.safetensors")
    put(model, "model.safetensors.index.json", {"weight_map": {"w": "model-1-of-1.safetensors"}})
    assert check_model_folder(model) == []
    (model / "model-1-of-1.safetensors").write_bytes(b"")
    assert str(model / "model-1-of-1.safetensors") in the_error(model)


@pytest.mark.parametrize("name", ["generation_config.json", "processor_config.json"])
def test_code_is_refused_wherever_it_is_asked_for(model: Path, name: str) -> None:
    put(model, name, {"auto_map": {"AutoProcessor": "own.Own"}})
    assert the_error(model).startswith(f"{model / name}: ")


def test_an_adapter_is_refused_since_it_would_be_loaded_with_the_model_that_it_names(model: Path) -> None:
    put(model, "adapter_config.json", {"base_model_name_or_path": "somebody/elses"})
    assert "the folder holds an adapter" in the_error(model)


FAMILIES = ("LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer")
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


@pytest.mark.parametrize("name", [*GENERIC, *FAMILIES, *(f"{family}Fast" for family in FAMILIES)])
def test_tokenizers_of_the_families_are_allowed(model: Path, name: str) -> None:
    put(model, "tokenizer_config.json", {"tokenizer_class": name})
    assert check_model_folder(model) == []


@pytest.mark.parametrize("name", ["EvilTokenizer", "LlamaTokenizerX", 5, ["LlamaTokenizer"]])
def test_another_tokenizer_class_is_refused(model: Path, name: object) -> None:
    put(model, "tokenizer_config.json", {"tokenizer_class": name})
    assert "is not on the list" in the_error(model)


def test_the_list_can_be_extended(model: Path) -> None:
    put(model, "tokenizer_config.json", {"tokenizer_class": "BloomTokenizer"})
    assert "model.tokenizer_classes=[BloomTokenizer]" in the_error(model)
    assert check_model_folder(model, extra_tokenizer_classes=["BloomTokenizer"]) == []


def test_all_findings_come_together(model: Path) -> None:
    put(model, "config.json", {"auto_map": {"a": "b.c"}})
    put(model, "tokenizer_config.json", {"tokenizer_class": "EvilTokenizer"})
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert len(check_model_folder(model)) == 3


def test_the_check_loads_no_model_library() -> None:
    code = "import sys, verl_core.cli.check; print(*sorted({'torch', 'transformers', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == ""
