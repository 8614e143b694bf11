"""Counter-based draws: each a pure function of its seed and its position, whoever asks for it, and with what else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from verl_core.draws import permutation, philox, seed_of, uniforms

SEEDS = st.integers(0, 2**64 - 1)


def test_the_generator_is_the_one_that_was_published() -> None:
    """Known answers of Philox4x32-10 (Random123, ``kat_vectors``): counter and key of zeros, and of ones."""
    ones = np.uint64(2**64 - 1)
    assert philox(np.zeros(1, np.uint64), np.zeros(1, np.uint64)).tolist() == [(0x6627E8D5 << 32) | 0xE169C58D]
    assert len({int(philox(np.array([ones]), np.array([n], np.uint64))[0]) for n in range(100)}) == 100


@given(st.lists(SEEDS, min_size=1, max_size=5), st.integers(0, 50), st.integers(1, 20))
def test_a_draw_depends_on_its_seed_and_position_alone(seeds: list[int], start: int, count: int) -> None:
    together = uniforms(np.array(seeds, np.uint64), start, count)
    for row, seed in zip(together, seeds, strict=True):
        alone = [uniforms(np.array([seed], np.uint64), start + i, 1)[0, 0] for i in range(count)]
        assert row.tolist() == alone
    assert ((together >= 0) & (together < 1)).all()


def test_parts_of_a_seed_are_kept_apart() -> None:
    """However they are cut, and whatever their type."""
    parts: list[tuple[int | str, ...]] = [
        (1, 23), (12, 3), (123,), ("1", 23), ("1", "23"), ("a", "bc"), ("ab", "c"), ("abc",), (1, 2, 3), ("a", 1),
        ("aint:1",),
    ]  # fmt: skip
    assert len({seed_of(*p) for p in parts}) == len(parts)
    assert seed_of("train", 3) == seed_of("train", 3) < 2**64


@given(SEEDS, st.integers(0, 60))
def test_a_permutation_has_everything_once(seed: int, size: int) -> None:
    assert sorted(permutation(seed, size).tolist()) == list(range(size))
