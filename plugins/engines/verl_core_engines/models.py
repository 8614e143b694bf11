"""Causal language models from a local folder, and their tensors by Hugging Face names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from verl_core.errors import ModelError
from verl_core.interchange.tensors import named_tensors
from verl_core.types import BuildContext

from .torch_setup import DTYPES

# Architectures whose forward pass takes a 4D mask as it is; each is held against the padded pass by a test.
TAKES_4D_MASK = frozenset({"gemma", "gpt2", "llama", "qwen2", "qwen3"})
_ADDITIVE = ("sdpa", "eager")  # attention functions that add a float mask
_DROPOUTS = ("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "dropout")
_EXPORT = "export it again with save_pretrained"
_SMALL = (".json", ".jinja", ".txt", ".model")


@dataclass(frozen=True, slots=True)
class Model:
    """A model and what the engines need to know about it."""

    module: Any  # transformers' PreTrainedModel, which has no types
    tensors: dict[str, torch.Tensor]  # parameters and persistent buffers; tied ones once, under their first name
    aliases: dict[str, str]  # name of a tied tensor → its first name
    takes_4d_mask: bool
    cache_argument: str  # of the forward pass: its name differs between versions of transformers
    max_positions: int  # 0: unknown


def load_model(context: BuildContext, device: torch.device, attention: str) -> Model:
    """The model of ``context.model_path`` without dropout: safetensors, or a pickle where it is allowed by name; never
    code from the folder.

    Raises ModelError: folder missing, malformed, or its weights do not fit its config.
    """
    config = plain_config(context.model_path)
    module = loaded(AutoModelForCausalLM, config, context.model_path, context, attention).to(device)
    tensors, aliases = named_tensors(module)
    forward = inspect.signature(type(module).forward).parameters
    return Model(
        module,
        tensors,
        aliases,
        _takes_4d_mask(module.config, attention),
        "cache" if "cache" in forward else "past_key_values",
        int(module.config.to_dict().get("max_position_embeddings") or 0),
    )


def plain_config(where: str) -> Any:
    """The config of a model folder without dropout. Raises ModelError."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would warn of is checked in ``loaded``
    with _named(where):
        config = AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
    for name in _DROPOUTS:  # ratios of probabilities mean something only without it
        if name in config.to_dict():
            setattr(config, name, 0.0)
    return config


def loaded(kind: Any, config: Any, where: str, context: BuildContext, attention: str) -> Any:
    """The module of one of transformers' auto classes, for inference. Raises ModelError."""
    with _named(where):
        module, report = kind.from_pretrained(
            where,
            config=config,
            dtype=DTYPES[context.dtype],
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=None if context.allow_pickle else True,
            output_loading_info=True,
        )
    if lacking := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise ModelError(f"weights do not fit config.json, first at {lacking[0]}", where=where, remedy=_EXPORT)
    for tensor in named_tensors(module)[0].values():  # own, aligned memory instead of a view of the file
        tensor.data = tensor.data.clone()
    return module.eval()


@contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, StrictDataclassError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model cannot be loaded: {first}", where=where, remedy=_EXPORT) from error


def small_files(folder: str) -> dict[str, bytes]:
    """Config and tokenizer files, by name; no weights."""
    found = sorted(p for p in Path(folder).iterdir() if p.suffix in _SMALL and not p.name.endswith(".index.json"))
    return {p.name: p.read_bytes() for p in found}


def _takes_4d_mask(config: Any, attention: str) -> bool:
    """Only listed architectures, and only where every layer sees the whole sequence."""
    facts = config.to_dict()
    whole = all(kind == "full_attention" for kind in facts.get("layer_types") or ())
    sliding = facts.get("sliding_window") and facts.get("use_sliding_window", True)
    return facts.get("model_type") in TAKES_4D_MASK and attention in _ADDITIVE and whole and not sliding
