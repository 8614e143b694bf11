"""Which machine a figure was taken on; figures without it mean nothing."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import psutil


def describe(folder: Path) -> dict[str, str | float]:
    """CPU, logical cores, memory in GiB, file system of ``folder``, versions of Python and torch, load."""
    return {
        "cpu": _cpu(),
        "cores": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "file_system": _file_system(folder),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "load_1m": round(psutil.getloadavg()[0], 2),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    path = folder.resolve()
    mounts = [p for p in psutil.disk_partitions(all=True) if path.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else "unknown"
