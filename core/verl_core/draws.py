"""Counter-based randomness: every draw is a pure function of a 64-bit seed and a position.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
vectorised over seeds, so that a draw depends neither on the batch around it nor on the draws before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def seed_of(*parts: int | str) -> int:
    """An unsigned 64-bit seed from a tuple of names and numbers, by hash: equal parts, equal seed."""
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(blake3(text.encode()).digest(8), "little")


def philox(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """64 random bits for each pair of (seed, counter); the two arrays broadcast."""
    key0, key1 = seeds & _LOW, seeds >> _32
    c0, c1 = np.broadcast_arrays(counters & _LOW, counters >> _32)
    c2 = c3 = np.zeros(1, np.uint64)
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ key0, p1 & _LOW, (p0 >> _32) ^ c3 ^ key1, p0 & _LOW
        key0, key1 = (key0 + _W0) & _LOW, (key1 + _W1) & _LOW
    bits: npt.NDArray[np.uint64] = (c0 << _32) | c1
    return bits


def uniforms(seeds: npt.NDArray[np.uint64], start: int, count: int) -> npt.NDArray[np.float64]:
    """Uniform draws in [0, 1): ``[B]`` seeds → ``[B, count]`` for positions ``start`` … ``start + count - 1``."""
    positions = np.arange(start, start + count, dtype=np.uint64)
    return (philox(seeds[:, None], positions[None, :]) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, size: int) -> npt.NDArray[np.int64]:
    """A random order of ``range(size)``: positions sorted by their draw, ties by position."""
    draws = philox(np.array([seed], np.uint64), np.arange(size, dtype=np.uint64))
    return np.argsort(draws, kind="stable").astype(np.int64)
