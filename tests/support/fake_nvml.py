"""NVML as ``nvidia-ml-py`` offers it, with the GPUs that ``$FAKE_NVML`` lists (JSON): the border to the driver.

Put into ``sys.modules["pynvml"]``, or as ``pynvml.py`` on the path of another process. ``lost: true`` is a GPU that
does not answer any more, ``used`` the share of its memory that is taken; ``$FAKE_NVML`` empty is a host without a
driver.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_begun = 0


class NVMLError(Exception):
    """What the library raises."""


@dataclass(frozen=True)
class Handle:
    gpu: dict[str, Any]


def nvmlInit() -> None:
    global _begun
    if not os.environ.get("FAKE_NVML"):
        raise NVMLError("NVML Shared Library Not Found")
    _begun += 1


def nvmlShutdown() -> None:
    global _begun
    _begun -= 1


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> Handle:
    gpu = _gpus()[index]
    if gpu.get("lost"):
        raise NVMLError("GPU is lost")
    return Handle(gpu)


def nvmlDeviceGetUUID(handle: Handle) -> str:
    return str(handle.gpu["uuid"])


def nvmlDeviceGetName(handle: Handle) -> bytes:  # older releases return bytes
    return b"NVIDIA Fake"


def nvmlDeviceGetMemoryInfo(handle: Handle) -> SimpleNamespace:
    total, used = 80 << 30, int((80 << 30) * handle.gpu.get("used", 1 / 80))
    return SimpleNamespace(total=total, free=total - used, used=used)


def nvmlDeviceGetPciInfo(handle: Handle) -> SimpleNamespace:
    return SimpleNamespace(busId=handle.gpu["bus"])


def _gpus() -> list[dict[str, Any]]:
    if _begun < 1:
        raise NVMLError("Uninitialized")
    found: list[dict[str, Any]] = json.loads(os.environ["FAKE_NVML"])
    return found


# --- for tests ---------------------------------------------------------------------------------


def node(count: int = 8, used: float = 1 / 80) -> str:
    """``$FAKE_NVML`` of a node: GPU-0000… in the order of the bus, the last one filled to ``used``."""
    gpus = [{"uuid": uuid(n), "bus": f"00000000:{0x10 + n:02X}:00.0"} for n in range(count)]
    return json.dumps([*gpus[:-1], {**gpus[-1], "used": used}])


def renumbered(text: str, order: list[int]) -> str:
    """The same GPUs under other numbers."""
    gpus = json.loads(text)
    return json.dumps([gpus[n] for n in order])


def uuid(number: int) -> str:
    return f"GPU-{number:08d}-aaaa-bbbb-cccc-0123456789ab"
