"""The tiny model of the quickstart: made here, warm-started on the sorting task, the same bits each time.

Qwen3 architecture, about 0.4M parameters, a character tokenizer. Supervised training stops early on purpose, at a
sampled pass rate of about a third: enough reward to learn from, enough left to learn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..draws import seed_of
from .folders import MODEL_FILES, make_folder
from .task import ALPHABET, draw_words

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

_PAD, _BOS, _EOS = 0, 1, 2
_SPECIALS = ("<pad>", "<bos>", "<eos>")
_CHARACTERS = "0123456789+=" + ALPHABET + " >"
_LETTERS, _ITERATIONS, _BATCH, _WARMUP, _LR = 5, 70, 64, 50, 3e-3


def make_tiny_model(folder: Path, seed: int) -> Path:
    """Make the model folder (a few seconds on one core), whole or not at all; an existing one is left as it is.

    Two calls with one seed on one platform write the same bytes. Raises ModelError for a folder that lacks files.
    """

    def fill(draft: Path) -> None:
        with _reproducible(seed_of(seed, "tiny model")):
            model = _fresh_model()
            _warm_start(model, seed_of(seed, "warm start"))
        with no_progress_bars():
            model.save_pretrained(draft)
        character_tokenizer().save_pretrained(draft)

    return make_folder(folder, MODEL_FILES, fill)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep the bars of transformers off the terminal; afterwards all is as it was."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """One thread, deterministic kernels, a seeded generator; afterwards all is as it was."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            torch.set_num_threads(1)
            torch.set_deterministic_debug_mode("error")
            torch.default_generator.manual_seed(seed)
            yield
        finally:
            torch.set_deterministic_debug_mode(deterministic)
            torch.set_num_threads(threads)


def _fresh_model() -> Qwen3ForCausalLM:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(_SPECIALS) + len(_CHARACTERS),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=_PAD,
        bos_token_id=_BOS,
        eos_token_id=_EOS,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def _warm_start(model: Qwen3ForCausalLM, seed: int) -> None:
    """Supervised training on words of its own, loss on the response tokens only."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.98), weight_decay=0.0)
    model.train()
    for iteration in range(_ITERATIONS):
        for group in optimizer.param_groups:
            group["lr"] = _LR * min(1.0, (iteration + 1) / _WARMUP)
        ids, start = _batch(seed, iteration)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[:, start - 1 :]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, start:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _batch(seed: int, iteration: int) -> tuple[torch.Tensor, int]:
    """Token ids ``[batch, length]`` of "BOS word > sorted EOS" and the position of the first response token."""
    import torch

    words = draw_words(seed, iteration * _BATCH, _BATCH, _LETTERS)
    first = len(_SPECIALS) + _CHARACTERS.index(ALPHABET[0])
    mark = len(_SPECIALS) + _CHARACTERS.index(">")
    column = np.ones((_BATCH, 1), np.int64)
    ids = np.concatenate([_BOS * column, first + words, mark * column, first + np.sort(words), _EOS * column], axis=1)
    return torch.from_numpy(ids), _LETTERS + 2


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, BOS in front."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pad, bos, eos = _SPECIALS
    blank = " "  # stands for every character that the model does not know
    vocabulary = {token: number for number, token in enumerate((*_SPECIALS, *_CHARACTERS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=blank))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, _BOS)])
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=pad, bos_token=bos, eos_token=eos, clean_up_tokenization_spaces=False
    )
