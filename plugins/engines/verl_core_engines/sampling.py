"""Drawing tokens by inverse CDF, so that a draw is a function of (distribution, uniform number) alone.

Probabilities are turned into integers: their sums are exact, hence the same in any order and on any device, and a
token of weight zero is never drawn.
"""

from __future__ import annotations

import torch
from verl_core.types import Sampling

_ONE = 2.0**40  # weight of probability 1; what is rarer than 1 / _ONE is never drawn


def draw(logits: torch.Tensor, uniforms: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """``[N, V]`` logits and ``[N]`` float64 uniforms in [0, 1) → tokens ``[N]``, their log-probabilities ``[N]``.

    The distribution is softmax(logits / temperature), then top-k, then top-p, inverted in vocabulary order. The
    log-probabilities are those before top-k and top-p, as training computes them again. Temperature 0 takes the most
    likely token (the first of equals), with its log-probability at temperature 1.
    """
    logits = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        logits = logits / sampling.temperature
    logprobs = logits.log_softmax(-1)
    if sampling.temperature == 0.0:
        tokens = logits.argmax(-1)
    else:
        tokens = _invert(_filter((logprobs.exp() * _ONE).long(), sampling), uniforms)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative weight exceeds ``uniform * total``."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    threshold = torch.minimum((uniforms * total).long(), total - 1)
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    return tokens.clamp(max=weights.shape[-1] - 1)  # rows of NaN: their log-probability tells


def _filter(weights: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Weights with all but the top-k, then all but the top-p, set to zero; equals of the last one kept stay."""
    vocabulary = weights.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        least = weights.topk(sampling.top_k, -1).values[:, -1:]
        weights = weights.where(weights >= least, 0)
    if sampling.top_p < 1.0:
        ordered = weights.sort(-1, descending=True).values
        cumulative = ordered.cumsum(-1)
        kept = (cumulative - ordered).double() < sampling.top_p * cumulative[:, -1:].double()
        least = ordered.where(kept, torch.iinfo(torch.int64).max).amin(-1, keepdim=True)
        weights = weights.where(weights >= least, 0)
    return weights
