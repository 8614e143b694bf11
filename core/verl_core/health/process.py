"""What a start sets in its own process, before CUDA and NCCL read it: visible GPUs, NCCL's variables, processors."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..config.devices import Placement
from ..config.nccl import variables
from ..config.nvml import Gpu
from ..config.schema import DistributedConfig


def environment(config: DistributedConfig, placement: Placement) -> dict[str, str]:
    """The variables of this process and of all that it starts."""
    return {**variables(config.nccl), **placement.environment()}


def near(placement: Placement, gpus: Sequence[Gpu]) -> set[int]:
    """The processors near the GPUs that are bound; empty where a GPU does not say."""
    mine = [gpu for gpu in gpus if gpu.uuid in placement.uuids]
    return set() if any(not gpu.cpus for gpu in mine) else {cpu for gpu in mine for cpu in gpu.cpus}


def apply(config: DistributedConfig, placement: Placement, gpus: Sequence[Gpu]) -> None:
    """Set them. Of the processors only those are taken that this process may use."""
    os.environ.update(environment(config, placement))
    if config.numa == "bind" and (cpus := near(placement, gpus) & os.sched_getaffinity(0)):
        os.sched_setaffinity(0, cpus)
