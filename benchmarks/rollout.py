"""Group ``rollout``: generation by the ``hf`` engine against ``generate`` of transformers.

The same random model, prompts, lengths and sampling, interleaved; figures are ratios of medians, ours ÷ theirs. Ours
returns log-probabilities as well, theirs does not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from verl_core.types import BuildContext, GenerateRequest, Sampling
from verl_core_engines.hf import HfConfig, HfEngine

PROMPTS, GROUP, PROMPT_TOKENS, NEW_TOKENS, VOCABULARY, PAD = 32, 8, 24, 16, 40, 0
ROUNDS = 15


def measure() -> dict[str, float]:
    """``hf_vs_transformers``: throughput of 32 prompts of 12 to 24 tokens, 8 samples each, 16 new tokens."""
    with tempfile.TemporaryDirectory() as folder:
        engine, theirs = _engines(Path(folder))
    rng = np.random.default_rng(0)
    prompts = [
        tuple(rng.integers(3, VOCABULARY, PROMPT_TOKENS - i % (PROMPT_TOKENS // 2 + 1)).tolist())
        for i in range(PROMPTS)
    ]
    requests = [GenerateRequest(p, tuple(range(i * GROUP, (i + 1) * GROUP))) for i, p in enumerate(prompts)]
    sampling = Sampling(n=GROUP, max_new_tokens=NEW_TOKENS)
    ids = torch.tensor([[PAD] * (PROMPT_TOKENS - len(p)) + list(p) for p in prompts]).repeat_interleave(GROUP, 0)

    def other() -> None:
        theirs.generate(
            input_ids=ids,
            attention_mask=(ids != PAD).long(),
            do_sample=True,
            top_k=0,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=PAD,
        )

    our_time, their_time = _interleaved(lambda: engine.generate(requests, sampling), other)
    return {"hf_vs_transformers": their_time / our_time}


def _engines(folder: Path) -> tuple[HfEngine, Any]:
    """Both on the weights of one random model of the quickstart's shape; no token ends a sequence."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=PAD,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    engine = HfEngine(HfConfig(), BuildContext(model_path=str(folder), pad_id=PAD))
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine.load_weights(0, theirs.named_parameters())
    return engine, theirs


def _interleaved(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each, one warm-up call apart."""
    times: dict[Callable[[], object], list[float]] = {ours: [], theirs: []}
    for round_ in range(ROUNDS + 1):
        for call, seconds in times.items():
            begin = time.perf_counter()
            call()
            if round_:
                seconds.append(time.perf_counter() - begin)
    return statistics.median(times[ours]), statistics.median(times[theirs])
