"""Whether a model folder is safe and complete, from its JSON files alone: no model library is imported.

Refused: code that comes with the model (``auto_map``, ``custom_pipelines``), pickled weights, tokenizer classes that
are not on the list.
"""

from __future__ import annotations

import json
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


def check_model_folder(
    path: str | Path, *, allow_pickle: bool = False, extra_tokenizer_classes: Sequence[str] = ()
) -> list[ModelError]:
    """All reasons against loading the model of this folder; none when it is safe and complete."""
    folder = Path(path)
    if not folder.is_dir():
        there = "is not a folder" if folder.exists() else "does not exist"
        remedy = "give a folder with config.json, safetensors weights and a tokenizer"
        return [ModelError(f"model folder {there}", where=str(path), remedy=remedy)]
    found: list[ModelError] = []
    config = _json(folder / "config.json", found, needed=True)
    tokenizer = _json(folder / "tokenizer_config.json", found)
    _json(folder / "tokenizer.json", found, needed=True)
    for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        found += _code(folder / name, content)
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
        found.append(ModelError(reason, where=str(file), remedy="download or export the model again"))
        return {}
    if not isinstance(content, dict):
        found.append(ModelError("not a JSON object", where=str(file), remedy="download or export the model again"))
        return {}
    return cast("dict[str, object]", content)


def _code(file: Path, content: Mapping[str, object]) -> list[ModelError]:
    remedy = "remote code is never run: take a model of an architecture that transformers has itself"
    asked = {key: content[key] for key in _CODE if content.get(key)}
    what = f"asks for code that comes with the model: {json.dumps(asked)}"
    return [ModelError(what, where=str(file), remedy=remedy)] if asked else []


def _weights(folder: Path, allow_pickle: bool) -> list[ModelError]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        found: list[ModelError] = []
        shards = _json(index, found).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
        missing = [name for name in names if not (folder / name).is_file()]
        if missing or not names:
            what = f"weights are missing: {', '.join(missing) or 'the index names none'}"
            found.append(ModelError(what, where=str(index), remedy="download or export the model again"))
        return found
    if any(folder.glob("*.safetensors")):
        return []
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
    if not pickles:
        remedy = "give the folder of a complete model (save_pretrained writes model.safetensors)"
        return [ModelError("no weights (*.safetensors)", where=str(folder), remedy=remedy)]
    if allow_pickle:
        return []
    remedy = "convert the weights to safetensors, or, if you trust their source, --set model.allow_pickle=true"
    return [ModelError(f"the weights are a pickle: {', '.join(pickles)}", where=str(folder), remedy=remedy)]


def _tokenizer(folder: Path, config: Mapping[str, object], allowed: Sequence[str]) -> list[ModelError]:
    name = config.get("tokenizer_class")
    if name is None or name in allowed:
        return []
    remedy = did_you_mean(str(name), allowed) + f" If you trust it: --set model.tokenizer_classes=[{name}]"
    what = f"tokenizer class {name!r} is not on the list of allowed ones"
    return [ModelError(what, where=str(folder / "tokenizer_config.json"), remedy=remedy)]
