"""Whether a model folder is safe and complete, from its JSON files alone: no model library is imported.

Refused: code that comes with the model (``auto_map``, ``custom_pipelines``), adapters that name another model, pickled
weights, files that are no whole safetensors, tokenizer classes that are not on the list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from ..errors import ModelError
from .suggest import did_you_mean

FAMILIES = ("Llama", "CodeLlama", "Qwen2", "Qwen3_5", "Gemma", "GPT2", "GPTNeoX")
TOKENIZER_CLASSES = frozenset(
    {f"{family}Tokenizer{fast}" for family in FAMILIES for fast in ("", "Fast")}
    | {"PreTrainedTokenizerFast", "TokenizersBackend"}
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_CODE = ("auto_map", "custom_pipelines")
_MAY_ASK = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")
_ADAPTER = "adapter_config.json"
_LONGEST_HEADER = 100 << 20  # bytes, as the safetensors library has it
_AGAIN = "download or export the model again"


def check_model_folder(
    path: str | Path, *, allow_pickle: bool | None = False, extra_tokenizer_classes: Sequence[str] = ()
) -> list[ModelError]:
    """All reasons against loading the model of this folder; none when it is safe and complete. ``allow_pickle`` None:
    no key would allow one."""
    folder = Path(path)
    if not folder.is_dir():
        there = "is not a folder" if folder.exists() else "does not exist"
        remedy = "give a folder with config.json, safetensors weights and a tokenizer"
        return [ModelError(f"model folder {there}", where=str(path), remedy=remedy)]
    found: list[ModelError] = []
    _json(folder / "config.json", found, needed=True)
    tokenizer = _json(folder / "tokenizer_config.json", found)
    _json(folder / "tokenizer.json", found, needed=True)
    for name in _MAY_ASK:
        found += _code(folder / name, _json(folder / name, []))
    if (folder / _ADAPTER).exists():  # transformers would load it on top, with the base model that it names
        remedy = "merge the adapter into its model (merge_and_unload), and give that folder"
        found.append(ModelError("the folder holds an adapter", where=str(folder / _ADAPTER), remedy=remedy))
    found += _weights(folder, allow_pickle)
    found += _tokenizer(folder, tokenizer, (*TOKENIZER_CLASSES, *extra_tokenizer_classes))
    return found


def _json(file: Path, found: list[ModelError], needed: bool = False) -> Mapping[str, object]:
    """The object in a JSON file; what is wrong with it goes to ``found``."""
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if needed:
            remedy = "give the folder of a complete model (save_pretrained writes it)"
            found.append(ModelError("file is missing", where=str(file), remedy=remedy))
        return {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as e:
        reason = f"cannot be read as JSON ({type(e).__name__})"
        found.append(ModelError(reason, where=str(file), remedy=_AGAIN))
        return {}
    if not isinstance(content, dict):
        found.append(ModelError("not a JSON object", where=str(file), remedy=_AGAIN))
        return {}
    return cast("dict[str, object]", content)


def _code(file: Path, content: Mapping[str, object]) -> list[ModelError]:
    remedy = "remote code is never run: take a model of an architecture that transformers has itself"
    asked = {key: content[key] for key in _CODE if content.get(key)}
    what = f"asks for code that comes with the model: {json.dumps(asked)}"
    return [ModelError(what, where=str(file), remedy=remedy)] if asked else []


def _weights(folder: Path, allow_pickle: bool | None) -> list[ModelError]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _indexed(folder, index)
    if files := sorted(folder.glob("*.safetensors")):
        return [error for file in files for error in _whole(file)]
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
    if not pickles:
        remedy = "give the folder of a complete model (save_pretrained writes model.safetensors)"
        return [ModelError("no weights (*.safetensors)", where=str(folder), remedy=remedy)]
    if allow_pickle:
        return []
    remedy = "convert the weights to safetensors"
    if allow_pickle is not None:
        remedy += ", or, if you trust their source, --set model.allow_pickle=true"
    return [ModelError(f"the weights are a pickle: {', '.join(pickles)}", where=str(folder), remedy=remedy)]


def _indexed(folder: Path, index: Path) -> list[ModelError]:
    """The shards that an index names: whole safetensors of this folder, nothing else."""
    found: list[ModelError] = []
    shards = _json(index, found).get("weight_map")
    names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
    if odd := [name for name in names if not name.endswith(".safetensors") or Path(name).name != name]:
        what = f"names weights that are no safetensors of this folder: {', '.join(odd)}"
        return [*found, ModelError(what, where=str(index), remedy="convert the weights to safetensors")]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        what = f"weights are missing: {', '.join(missing) or 'the index names none'}"
        return [*found, ModelError(what, where=str(index), remedy=_AGAIN)]
    return [*found, *(error for name in names for error in _whole(folder / name))]


def _whole(file: Path) -> list[ModelError]:
    """Whether header and size of a file are those of whole safetensors: a download may have been cut short."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
                raise ValueError("no header")
            header = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except OSError as error:
        what, remedy = f"cannot be read ({error.strerror})", "check its permissions and its mount"
        return [ModelError(what, where=str(file), remedy=remedy)]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return [ModelError("not a safetensors file", where=str(file), remedy=_AGAIN)]
    if size == wanted:
        return []
    return [ModelError(f"{size} bytes, its header says {wanted}", where=str(file), remedy=_AGAIN)]


def _tokenizer(folder: Path, config: Mapping[str, object], allowed: Sequence[str]) -> list[ModelError]:
    name = config.get("tokenizer_class")
    if name is None or name in allowed:
        return []
    remedy = did_you_mean(str(name), allowed) + f" If you trust it: --set model.tokenizer_classes=[{name}]"
    what = f"tokenizer class {name!r} is not on the list of allowed ones"
    return [ModelError(what, where=str(folder / "tokenizer_config.json"), remedy=remedy)]
