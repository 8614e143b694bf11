"""The order of prompts as a pure function of (seed, epoch): to resume takes a number, not an iterator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..draws import permutation, seed_of


def epoch_order(seed: int, epoch: int, size: int, shuffle: bool = True) -> npt.NDArray[np.int64]:
    """Positions ``0 … size-1`` in the order of this epoch, shape ``[size]``; an order of its own for each epoch."""
    return permutation(seed_of(seed, "order", epoch), size) if shuffle else np.arange(size, dtype=np.int64)


def epoch_batches(order: npt.NDArray[np.int64], prompts_per_batch: int) -> list[tuple[int, ...]]:
    """Cut an order into batches; the last one is ragged when the sizes do not divide. Never looks at workers."""
    positions = order.tolist()
    return [tuple(positions[i : i + prompts_per_batch]) for i in range(0, len(positions), prompts_per_batch)]
