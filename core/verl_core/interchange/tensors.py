"""Torch tensors from and to raw bytes, by the dtype names of the safetensors format."""

from __future__ import annotations

import torch

from ..errors import ModelError
from ..types import Bytes

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """Raises ModelError for a type that no model here has."""
    if tensor.dtype not in _NAMES:
        raise ModelError(f"its type {tensor.dtype} is not known here", where=f"tensor {name}")
    return _NAMES[tensor.dtype]


def named_tensors(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors of the state dict without copies: each once, and the further names of tied ones."""
    first: dict[int, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        known = first.setdefault(id(tensor), name)
        if known == name:
            tensors[name] = tensor
        else:
            aliases[name] = known
    return tensors, aliases


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements row-major, without a copy where they lie so."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def from_bytes(data: Bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor with memory of its own."""
    whole = torch.empty(shape, dtype=DTYPES[dtype])
    if whole.numel():
        whole.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return whole
