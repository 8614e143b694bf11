"""GRPO: group-relative advantages and the clipped policy loss.

Advantages: Shao et al., "DeepSeekMath", arXiv 2402.03300, section 4.1.2; without division by the deviation:
Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv 2503.20783. Loss: Schulman et al., "Proximal Policy
Optimization Algorithms", arXiv 1707.06347, eq. 7, with two ratios as in Yu et al., "DAPO", arXiv 2503.14476, eq. 10,
and DAPO's mean over all tokens of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..protocols import LossFn
from ..types import BuildContext
from .flow import OnPolicy

if TYPE_CHECKING:
    import torch


@dataclass
class GrpoConfig:
    """``clip_ratio_high`` above ``clip_ratio_low`` is DAPO's clip-higher; ``normalize_std`` False is Dr. GRPO."""

    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    normalize_std: bool = True
    std_eps: float = 1e-4  # added to a group's deviation


class Grpo(OnPolicy):
    """See ``protocols.Algorithm``."""

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config

    def advantages(self, rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return group_advantages(rewards, groups, self._config)

    @property
    def loss(self) -> LossFn:
        return partial(clipped_loss, low=self._config.clip_ratio_low, high=self._config.clip_ratio_high)


def build_grpo(config: GrpoConfig, context: BuildContext) -> Grpo:
    """Raises ConfigError for values that cannot be meant."""
    if not (0 <= config.clip_ratio_low < 1 and config.clip_ratio_high >= 0 and config.std_eps > 0):
        raise ConfigError(
            "clip_ratio_low must lie in [0, 1), clip_ratio_high must not be negative, std_eps must be positive",
            where="algorithm.options",
        )
    return Grpo(config)


def group_advantages(
    rewards: npt.NDArray[np.float64], groups: npt.NDArray[np.int64], config: GrpoConfig
) -> npt.NDArray[np.float64]:
    """Rewards less their group's mean, over the group's deviation (n - 1 in the denominator).

    A group whose rewards are all equal gets zeros exactly, whatever the mean rounds to.
    """
    advantages = np.zeros(len(rewards))
    for group in np.unique(groups):
        members = groups == group
        of_group = rewards[members]
        if of_group.min() == of_group.max():
            continue
        centred = of_group - of_group.mean()
        advantages[members] = centred / (of_group.std(ddof=1) + config.std_eps) if config.normalize_std else centred
    return advantages


def clipped_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    low: float,
    high: float,
) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """See ``protocols.LossFn``: -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) per token."""
    ratio = (logp - old_logp).exp()
    free = ratio * advantages[:, None]
    clipped = ratio.clamp(1 - low, 1 + high) * advantages[:, None]
    return -free.minimum(clipped), {"clip_fraction": (clipped < free).to(logp.dtype)}
