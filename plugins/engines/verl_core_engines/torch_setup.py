"""Process-wide settings of torch: threads, deterministic kernels, the device, and the platform they amount to."""

from __future__ import annotations

import os

import torch
import torch.utils.deterministic
from verl_core.errors import ConfigError
from verl_core.types import BuildContext, HealthFinding, PlatformKey

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def prepare(context: BuildContext) -> torch.device:
    """Set up this process for ``context`` and return its device. Repeating it is harmless.

    Raises ConfigError for a device that is not there or an unknown dtype.
    """
    if context.dtype not in DTYPES:
        raise ConfigError(
            f"unknown dtype {context.dtype!r}", where="model.actor.dtype", remedy=f"one of {list(DTYPES)}"
        )
    device = _device(context.device)
    torch.set_num_threads(max(1, context.threads))
    if device.type == "cuda":  # read by cuBLAS when its first handle is made
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # like use_deterministic_algorithms, without its import of the compiler (2 s)
    torch.set_deterministic_debug_mode("error" if context.deterministic else "default")
    # nothing here reads memory before it is written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = not context.deterministic
    torch.backends.cudnn.allow_tf32 = not context.deterministic
    torch.backends.cudnn.benchmark = False
    return device


class DeviceCheck:
    """Health check ``device``: whether ``training.device`` is there, asked before anything is written."""

    def __init__(self, device: str) -> None:
        self._device = device

    def check(self) -> list[HealthFinding]:
        try:
            return [HealthFinding("training.device", True, f"{_device(self._device)}")]
        except ConfigError as error:
            return [HealthFinding("training.device", False, error.what, error.remedy)]


def platform_key(context: BuildContext, device: torch.device, layout: str) -> PlatformKey:
    """What the bits of an update depend on beside its inputs. ``layout``: all choices that shape the forward pass."""
    cuda = device.type == "cuda"
    machine = torch.cuda.get_device_name(device) if cuda else f"cpu {torch.backends.cpu.get_cpu_capability()}"
    return PlatformKey(machine, torch.__version__, torch.get_num_threads(), context.dtype, context.world_size, layout)


def _device(name: str) -> torch.device:
    """``auto``, ``cpu``, ``cuda``, or ``cuda:N`` where a GPU is bound."""
    cuda, (kind, _, number) = torch.cuda.is_available(), name.partition(":")
    if name == "auto":
        return torch.device("cuda" if cuda else "cpu")
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not cuda):
        what = "no CUDA device is available" if kind == "cuda" else f"unknown device {name!r}"
        raise ConfigError(what, where="training.device", remedy="auto, cpu, or cuda where a GPU is at hand")
    if number and int(number) >= torch.cuda.device_count():
        what = f"{name} is bound, but this process sees {torch.cuda.device_count()} GPUs"
        raise ConfigError(what, where="distributed.gpu_uuids", remedy="leave CUDA_VISIBLE_DEVICES to the run")
    return torch.device(name)
