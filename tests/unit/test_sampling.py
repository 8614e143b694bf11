"""Draws by inverse CDF, held against a plain implementation in double precision."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl_core.draws import uniforms
from verl_core.types import Sampling
from verl_core_engines.sampling import draw

logits_rows = st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=30)


def distribution(logits: list[float], sampling: Sampling) -> npt.NDArray[np.float64]:
    """Temperature, then top-k, then top-p; ties of the last one kept stay."""
    scaled = np.array(logits, np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if 0 < sampling.top_k < len(probs):
        probs = np.where(probs >= np.sort(probs)[-sampling.top_k], probs, 0)
    if sampling.top_p < 1:
        ordered = np.sort(probs)[::-1]
        kept = ordered[np.cumsum(ordered) - ordered < sampling.top_p * probs.sum()]
        probs = np.where(probs >= kept.min(), probs, 0)
    result: npt.NDArray[np.float64] = probs / probs.sum()
    return result


def draws(logits: list[float], numbers: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.int64]:
    rows = torch.tensor(logits).expand(len(numbers), -1)
    tokens: npt.NDArray[np.int64] = draw(rows, torch.from_numpy(numbers), sampling)[0].numpy()
    return tokens


@given(logits_rows, st.floats(0, 1, exclude_max=True), st.sampled_from([0.5, 1.0, 1.7]))
def test_a_draw_inverts_the_cdf_in_vocabulary_order(logits: list[float], u: float, temperature: float) -> None:
    sampling = Sampling(temperature=temperature)
    (token,) = draws(logits, np.array([u]), sampling)
    edges = np.concatenate([[0.0], np.cumsum(distribution(logits, sampling))])
    assert edges[token] - 1e-6 <= u <= edges[token + 1] + 1e-6


@given(logits_rows, st.floats(0, 1, exclude_max=True), st.integers(1, 30), st.floats(0.05, 1.0))
def test_filtered_tokens_are_never_drawn(logits: list[float], u: float, top_k: int, top_p: float) -> None:
    sampling = Sampling(top_k=top_k, top_p=top_p)
    spread = [x + i * 1e-2 for i, x in enumerate(sorted(logits))]  # no two so close that rounding decides
    (token,) = draws(spread, np.array([u]), sampling)
    looser = Sampling(top_k=top_k, top_p=min(1.0, top_p + 1e-5))
    assert distribution(spread, looser)[token] > 0


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.6), Sampling(top_k=3), Sampling(top_p=0.7), Sampling(top_k=4, top_p=0.8)],
)
def test_frequencies_follow_the_filtered_distribution(sampling: Sampling) -> None:
    logits = [0.0, 2.0, -1.0, 1.0, 0.5, 1.5]
    numbers = uniforms(np.arange(40_000, dtype=np.uint64), 0, 1)[:, 0]
    found = np.bincount(draws(logits, numbers, sampling), minlength=len(logits)) / len(numbers)
    assert np.abs(found - distribution(logits, sampling)).max() < 0.01


def test_log_probabilities_are_those_before_the_filters_at_the_temperature() -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0, 1.0]])
    for temperature, scale in ((1.0, 1.0), (0.5, 0.5), (0.0, 1.0)):
        tokens, logprobs = draw(
            logits, torch.tensor([0.3], dtype=torch.float64), Sampling(temperature=temperature, top_k=2)
        )
        expected = (logits / scale).log_softmax(-1)[0, tokens[0]]
        assert logprobs[0].item() == pytest.approx(expected.item(), abs=1e-6)


def test_temperature_zero_takes_the_first_of_the_most_likely() -> None:
    numbers = torch.tensor([0.99], dtype=torch.float64)
    assert draw(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), numbers, Sampling(temperature=0.0))[0].item() == 1


@pytest.mark.parametrize("u", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_interval_draw_tokens_that_can_occur(u: float) -> None:
    impossible = float("-inf")
    logits = torch.tensor([[impossible, 1.0, 2.0, impossible]])
    token = draw(logits, torch.tensor([u], dtype=torch.float64), Sampling())[0].item()
    assert token == (1 if u == 0.0 else 2)


def test_nan_logits_give_nan_log_probabilities_instead_of_an_index_error() -> None:
    _, logprobs = draw(torch.full((1, 4), torch.nan), torch.tensor([0.5], dtype=torch.float64), Sampling())
    assert logprobs.isnan().all()
