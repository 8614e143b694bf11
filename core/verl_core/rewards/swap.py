"""A reward that takes another's place in the middle of a run.

The state log says so (``reward_updated``), and it alone: the config keeps the reward that the run began with. What an
attempt before that line made keeps its reward for good, also where it is made again; what later attempts make is scored
by the new one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..config.schema import RewardConfig
from ..errors import InputError
from ..protocols import Reward
from ..registry import REWARD, Registry
from ..state.history import Swap
from ..types import BuildContext, Prompt
from .models import described

_log = logging.getLogger("verl.reward")
_ALONE = "--no-warm-start takes the new outputs as they are"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A reward on the scale of the one before it."""

    inner: Reward
    scale: float
    shift: float

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [self.scale * score + self.shift for score in self.inner.score(prompts, responses)]


def block_after(first: RewardConfig, swaps: Sequence[Swap]) -> RewardConfig:
    """What the ``model.reward`` that a run began with amounts to after these swaps."""
    return swapped(first, swaps[-1].new.name, swaps[-1].new.path) if swaps else first


def swapped(first: RewardConfig, name: str, path: str) -> RewardConfig:
    """Another reward in the place of ``first``; options stay where the name does, and ``path`` is the new one."""
    kept: Mapping[str, object] = first.options if name == first.name else {}
    return RewardConfig(name, {**kept, "path": path} if path else dict(kept))


def build_after(registry: Registry, first: RewardConfig, swaps: Sequence[Swap], context: BuildContext) -> Reward:
    """The reward that is in force after these swaps. Raises what its builder raises."""
    block = block_after(first, swaps)
    reward = registry.build(REWARD, block.name, block.options, context)
    return Scaled(reward, swaps[-1].scale, swaps[-1].shift) if swaps else reward


def fit(new: Sequence[float], old: Sequence[float]) -> tuple[float, float]:
    """Scale and shift that bring the outputs ``new`` nearest to ``old``, in the sense of least squares.

    Raises InputError where no positive scale does: it would turn the new reward around, or flatten it.
    """
    x, y = np.array(new, np.float64), np.array(old, np.float64)
    around = x - x.mean()
    spread = float((around**2).sum())
    scale = float((around * (y - y.mean())).sum()) / spread if spread else 0.0
    shift = float(y.mean()) - scale * float(x.mean())
    if not (scale > 0.0 and math.isfinite(scale) and math.isfinite(shift)):
        what = f"on {len(new)} committed samples its outputs do not go with the old ones: no positive scale fits"
        raise InputError(what, where="--new-model", remedy=_ALONE)
    return scale, shift


def tell(swaps: Sequence[Swap]) -> None:
    """Say in the log which reward a start goes on with."""
    for swap in swaps[-1:]:
        how = f"fitted on {swap.samples} samples" if swap.samples else "not fitted"
        scale = f"scale {swap.scale:.6g}, shift {swap.shift:.6g}, {how}"
        old, new = described(swap.old), described(swap.new)
        _log.warning("scored by %s since step %d, in place of %s: %s", new, swap.from_step, old, scale)
