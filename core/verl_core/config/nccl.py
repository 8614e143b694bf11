"""NCCL's variables: from the config into the environment, checked for values that NCCL would take silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from .findings import Finding
from .nvml import SYSFS
from .schema import NcclConfig

_BLOCK = "distributed.nccl"
_RANGES = {  # bits of the fields in InfiniBand packets
    "NCCL_IB_SL": (0, 15),
    "NCCL_IB_TIMEOUT": (1, 31),  # 0 would wait for ever
    "NCCL_IB_RETRY_CNT": (0, 7),
    "NCCL_IB_GID_INDEX": (-1, 255),
}


def variables(config: NcclConfig) -> dict[str, str]:
    """What the config sets."""
    values: dict[str, str | int | None] = {
        "NCCL_SOCKET_IFNAME": config.NCCL_SOCKET_IFNAME,
        "NCCL_IB_DISABLE": config.NCCL_IB_DISABLE,
        "NCCL_IB_GID_INDEX": config.NCCL_IB_GID_INDEX,
        "NCCL_IB_SL": config.NCCL_IB_SL,
        "NCCL_IB_TIMEOUT": config.NCCL_IB_TIMEOUT,
        "NCCL_IB_RETRY_CNT": config.NCCL_IB_RETRY_CNT,
        "NCCL_IB_CUDA_SUPPORT": config.NCCL_IB_CUDA_SUPPORT,
    }
    return {name: str(int(v)) if isinstance(v, bool) else str(v) for name, v in values.items() if v is not None}


def shown(config: NcclConfig, environ: Mapping[str, str]) -> list[str]:
    """Every variable of NCCL that will be set, and by whom."""
    ours = variables(config)
    theirs = {name: value for name, value in environ.items() if name.startswith("NCCL_") and name not in ours}
    both = [(name, value, "config") for name, value in ours.items()]
    both += [(name, value, "environment") for name, value in sorted(theirs.items())]
    return [f"{name}={value} ({source})" for name, value, source in both]


def check_nccl(
    config: NcclConfig, environ: Mapping[str, str], interfaces: Sequence[str] | None = None, sysfs: Path = SYSFS
) -> Iterator[Finding]:
    """Values out of range, interfaces that are not there, settings that NCCL would ignore."""
    given = variables(config)
    for name, (low, high) in _RANGES.items():
        if name in given and not low <= int(given[name]) <= high:
            yield Finding(f"{_BLOCK}.{name}", f"{given[name]} is out of range", f"{low} to {high}")
    for name, value in given.items():
        if environ.get(name, value) != value:
            what = f"the environment says {environ[name]}, the config {value}, which is taken"
            yield Finding(f"{_BLOCK}.{name}", what, "keep one of them", warning=True)
    if (wanted := config.NCCL_SOCKET_IFNAME) is not None:
        here = list(psutil.net_if_addrs()) if interfaces is None else list(interfaces)
        if not any(matches(wanted, name) for name in here):
            what = f"{wanted!r} matches no network interface of this host"
            yield Finding(f"{_BLOCK}.NCCL_SOCKET_IFNAME", what, f"here: {', '.join(sorted(here))}")
    if config.NCCL_IB_DISABLE is False and not any(_listed(sysfs / "class/infiniband")):
        what = "InfiniBand is asked for, but this host has none"
        yield Finding(f"{_BLOCK}.NCCL_IB_DISABLE", what, "true, or look at `ibstat`", warning=True)
    if config.NCCL_IB_CUDA_SUPPORT is not None:
        what = "releases of NCCL since 2.4 do not read it"
        remedy = "leave it out; export NCCL_NET_GDR_LEVEL to choose when GPUs are reached directly"
        yield Finding(f"{_BLOCK}.NCCL_IB_CUDA_SUPPORT", what, remedy, warning=True)


def matches(wanted: str, interface: str) -> bool:
    """Whether NCCL would take an interface: prefixes, ``=`` for whole names, ``^`` in front for all others."""
    names = wanted.removeprefix("^").removeprefix("=").split(",")
    exact = wanted.removeprefix("^").startswith("=")
    hit = any(interface == name if exact else interface.startswith(name) for name in names if name)
    return hit != wanted.startswith("^")


def _listed(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
