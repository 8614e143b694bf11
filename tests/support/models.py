"""Random models of several architectures, small enough for any test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from verl_core.quickstart.model import character_tokenizer
from verl_core.types import BuildContext, Optim

VOCABULARY, PAD, EOS = 40, 0, 2
PACKABLE = ("gemma", "gpt2", "llama", "qwen2", "qwen3")  # see verl_core_engines.models.TAKES_4D_MASK

_COMMON = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": EOS}
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def random_model(folder: Path, kind: str = "qwen3", **changes: Any) -> str:
    """Write a model with large random weights, so that distributions are far from flat; returns its path."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128} if kind == "gpt2" else _SIZES
    config = transformers.AutoConfig.for_model(kind, **{**_COMMON, **sizes, **changes})
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return str(folder)


def context_of(model_path: str, **changes: Any) -> BuildContext:
    base = BuildContext(model_path=model_path, seed=5, pad_id=PAD, eos_ids=(EOS,), optim=Optim(lr=1e-2), total_steps=10)
    return replace(base, **changes)


def random_classifier(folder: Path, seed: int = 7, **changes: Any) -> str:
    """Write a reward model for the texts of the quickstart's task, the same bits for one seed; returns its path."""
    tokenizer = character_tokenizer()
    words = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model("qwen3", **{**_SIZES, **words, "num_labels": 1, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
