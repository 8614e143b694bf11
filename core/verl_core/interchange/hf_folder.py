"""Hugging Face model folders: written from bare tensors, then loaded again and held against them.

A writer that loses a tensor, changes a type or unties a head says nothing, and neither does the loader. So nothing
counts as written before ``from_pretrained`` gave back every bit: the policy digest of what it loads must be the one of
what was handed over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..checkpoint.digest import policy_digest
from ..checkpoint.format import ITEM_BYTES
from ..config.suggest import nearest
from ..errors import DamagedError, InputError, ModelError
from ..quickstart.folders import make_folder
from ..quickstart.model import no_progress_bars
from ..types import TensorSums
from .sums import byte_sums
from .tensors import dtype_name, named_tensors, raw_bytes

Tensors = Mapping[str, torch.Tensor]
CONFIG, GENERATION = "config.json", "generation_config.json"
_SHARD = "5GB"  # size of a weights file at most
_UNREADABLE = (OSError, ValueError, KeyError, ImportError, RuntimeError, StrictDataclassError, SafetensorError)


def new_model_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Have ``fill`` write a folder that is not there yet: whole and synced, or not at all. Raises InputError."""
    taken = InputError("is there already", where=str(target), remedy="name a folder that does not exist")
    if target.is_symlink() or target.exists():
        raise taken
    made: list[int] = []

    def noted(draft: Path) -> None:
        fill(draft)
        made.append(draft.stat().st_ino)

    make_folder(target, (), noted)
    if [target.stat().st_ino] != made:  # somebody else took the name meanwhile
        raise taken


def write_model(folder: Path, files: Mapping[str, bytes], tensors: Tensors) -> dict[str, TensorSums]:
    """Write config, tokenizer and weights; return the sums of every tensor that the model has, tied ones once.

    ``config.json`` stays as it is but for the type of the weights. Raises ModelError when the tensors are not those of
    the config's model, or when tied ones differ.
    """
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with _quiet():
        model = _empty_model(folder)
        own = _own_tensors(model, tensors, str(folder))
        model.load_state_dict(own, strict=False, assign=True)
        model.tie_weights()
        lost = [name for name, tensor in named_tensors(model)[0].items() if tensor.is_meta]
        if lost:
            raise ModelError(f"the model has no weights for {lost[0]}", where=CONFIG)
        model.save_pretrained(folder, max_shard_size=_SHARD)
    for path in folder.glob("*.safetensors"):  # which the library writes for the owner alone
        path.chmod((folder / CONFIG).stat().st_mode)
    for name in {CONFIG, GENERATION} & files.keys():
        (folder / name).write_bytes(files[name])  # not as this version of the library would put it
    (folder / CONFIG).write_bytes(_with_dtype(files[CONFIG], own))
    return {name: _sums(name, tensor) for name, tensor in own.items()}


def check_model(folder: Path, wanted: Mapping[str, TensorSums]) -> str:
    """Load the folder as anybody would, and return its policy digest. Raises DamagedError that names the first tensor
    that is lost, new, or not bit for bit what it was."""
    where, remedy = str(folder), "report it, with the versions of torch, transformers and safetensors"
    with _quiet():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype="auto",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except _UNREADABLE as error:
            raise DamagedError(f"cannot be loaded again: {_first_line(error)}", where=where, remedy=remedy) from error
    model, report = loaded
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[what]:
            words = what.replace("_keys", "")
            raise DamagedError(
                f"loaded again, {sorted(map(str, report[what]))[0]} is {words}", where=where, remedy=remedy
            )
    found = {name: _sums(name, tensor) for name, tensor in named_tensors(model)[0].items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            lost, new = name not in found, name not in wanted
            what = "is lost" if lost else "is new" if new else "has other values"
            raise DamagedError(f"loaded again, {name} {what}", where=where, remedy=remedy)
    return policy_digest(found.values())


def parameter_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Parameters of the config's model in the order in which optimizers number them, tied ones once."""
    with _quiet():
        tensors, _ = named_tensors(_empty_model(folder))
    return {name: tuple(t.shape) for name, t in tensors.items() if isinstance(t, torch.nn.Parameter)}


def _empty_model(folder: Path) -> Any:
    """The model of ``config.json`` without weights, and without memory for them. Raises ModelError."""
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except _UNREADABLE as error:
        what = f"no causal language model can be made of it: {_first_line(error)}"
        raise ModelError(
            what, where=CONFIG, remedy="it must be an architecture that transformers has itself"
        ) from error


def _own_tensors(model: torch.nn.Module, given: Tensors, where: str) -> dict[str, torch.Tensor]:
    """What was given, under the names of the model, each once."""
    wanted, aliases = named_tensors(model)
    for name in sorted(given.keys() - wanted.keys() - aliases.keys()):
        near = nearest(name, wanted)
        remedy = f"the nearest that it has is {near}" if near else "is this the config of these weights?"
        raise ModelError(f"config.json describes no tensor {name}", where=where, remedy=remedy)
    own = {name: tensor for name, tensor in given.items() if name in wanted}
    for alias, name in aliases.items():
        if alias not in given:
            continue
        tied = own.setdefault(name, given[alias])
        if _sums(name, tied) != _sums(name, given[alias]):
            what = f"config.json ties {alias} to {name}, but their values differ"
            raise ModelError(
                what, where=where, remedy="set tie_word_embeddings to false in config.json, if they should"
            )
    for name, tensor in wanted.items():
        if name not in own:
            raise ModelError(f"there is no tensor {name}", where=where, remedy="is this the config of these weights?")
        if own[name].shape != tensor.shape:
            what = f"{name} is {tuple(own[name].shape)}, config.json wants {tuple(tensor.shape)}"
            raise ModelError(what, where=where, remedy="is this the config of these weights?")
    return own


def _with_dtype(config: bytes, tensors: Tensors) -> bytes:
    """The config with the type that the weights have, if they have one: loaders go by it."""
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    fields = json.loads(config)
    keys = [key for key in ("dtype", "torch_dtype") if key in fields] or ["dtype"]
    wanted = str(next(iter(kinds))).removeprefix("torch.") if len(kinds) == 1 else None
    if wanted is None or all(fields.get(key) == wanted for key in keys):
        return config
    return (json.dumps({**fields, **dict.fromkeys(keys, wanted)}, indent=2, ensure_ascii=False) + "\n").encode()


def _sums(name: str, tensor: torch.Tensor) -> TensorSums:
    return byte_sums(name, ITEM_BYTES[dtype_name(name, tensor)], raw_bytes(tensor))


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars, and no warnings of what is checked here; afterwards all is as it was."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        with no_progress_bars():
            yield
    finally:
        transformers_logging.set_verbosity(level)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
