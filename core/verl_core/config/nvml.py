"""The GPUs of this host, as the driver names them: by UUID, which stays when a scheduler renumbers them.

The border to NVML (package ``nvidia-ml-py``, module ``pynvml``), which is imported when it is asked; memory and
processors near a GPU come from ``/sys``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

SYSFS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Gpu:
    uuid: str
    index: int  # NVML's, in the order of the bus; it changes with what is visible
    name: str
    memory_bytes: int
    bus_id: str
    numa_node: int | None
    cpus: tuple[int, ...]  # near it; empty: not known
    used_bytes: int = 0  # of its memory, when it was read


@dataclass(frozen=True, slots=True)
class Gpus:
    """``trouble`` says why none could be asked for, with the ``remedy``; none there is no trouble."""

    found: tuple[Gpu, ...]
    trouble: str = ""
    remedy: str = ""


def read_gpus(sysfs: Path = SYSFS) -> Gpus:
    """All GPUs that the driver shows to this process, whatever CUDA_VISIBLE_DEVICES says."""
    try:
        import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return Gpus((), "nvidia-ml-py is not installed", "pip install 'verl-core[gpu]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Gpus((), f"the NVIDIA driver does not answer: {error}", "is there a GPU, and is it given to this host?")
    try:
        return Gpus(tuple(_gpu(pynvml, index, sysfs) for index in range(pynvml.nvmlDeviceGetCount())))
    except pynvml.NVMLError as error:
        return Gpus((), f"a GPU does not answer: {error}", "look at `nvidia-smi`; a lost GPU needs a reset or a reboot")
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: ModuleType, index: int, sysfs: Path) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    bus_id = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    domain, _, rest = bus_id.partition(":")
    device = sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        used_bytes=int(memory.used),
        bus_id=bus_id,
        numa_node=_numa_node(device / "numa_node"),
        cpus=_cpus(device / "local_cpulist"),
    )


def _text(value: str | bytes) -> str:  # older releases return bytes
    return value.decode() if isinstance(value, bytes) else value


def _numa_node(file: Path) -> int | None:
    """None where the machine has one node only, or does not say."""
    try:
        node = int(file.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _cpus(file: Path) -> tuple[int, ...]:
    """The processors of a list like ``0-3,8,10-11``."""
    try:
        parts = [part.partition("-") for part in file.read_text().strip().split(",") if part]
        return tuple(cpu for low, _, high in parts for cpu in range(int(low), int(high or low) + 1))
    except (OSError, ValueError):
        return ()
