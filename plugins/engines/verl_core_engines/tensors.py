"""Tensors as raw bytes for checkpoints, and their fingerprints."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate

import numpy as np
import torch
from verl_core.errors import RunMismatch
from verl_core.types import Slice, TensorChunk, TensorSums

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.bool: "BOOL"}
_MODULUS = 1 << 64
_ALIGNED = 64  # bytes
_CPU_CHUNK, _GPU_CHUNK = 1 << 15, 1 << 24  # elements: the CPU's fits into its cache


def whole(name: str, tensor: torch.Tensor) -> Slice:
    """The piece that is all of a tensor."""
    return Slice(name, (0,) * tensor.dim(), tuple(tensor.shape))


class Staging:
    """Copies of tensors in host memory that is used again once nobody holds the last copy: a fresh page costs more than
    what is copied into it. Pinned where the tensors are on a GPU."""

    def __init__(self) -> None:
        self._memory: list[tuple[torch.Tensor, weakref.ref[np.ndarray]]] = []

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[TensorChunk]:
        """Each tensor, whole, as bytes."""
        sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors.values()]
        pinned = any(tensor.device.type == "cuda" for tensor in tensors.values())
        memory = self._take(sum(sizes), pinned)
        view = memory.numpy()
        self._memory.append((memory, weakref.ref(view)))
        copied = memoryview(view.data)  # pieces of it keep it, and that keeps the view
        for (name, tensor), begin in zip(tensors.items(), accumulate(sizes, initial=0), strict=False):
            piece, shape = slice(begin, begin + tensor.nbytes), tuple(tensor.shape)
            memory[piece].view(tensor.dtype).view(shape).copy_(tensor.detach())
            yield TensorChunk(name, _NAMES[tensor.dtype], shape, (0,) * len(shape), shape, copied[piece])

    def _take(self, size: int, pinned: bool) -> torch.Tensor:
        """Memory that no copy is left in; of several such pieces one is kept."""
        free = [memory for memory, view in self._memory if view() is None]
        self._memory = [(memory, view) for memory, view in self._memory if view() is not None]
        found = next((memory for memory in free if memory.nbytes == size), None)
        if found is not None:
            return found
        return torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else _memory(size)


def _memory(size: int) -> torch.Tensor:
    """In large pages where there are such: 1.6 GB are there four times as fast."""
    memory = mmap.mmap(-1, max(size, 1))
    with suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size]


def copy_in(tensor: torch.Tensor, chunk: TensorChunk) -> None:
    """Overwrite a tensor bit for bit. Raises RunMismatch when the chunk is of another type or shape."""
    wanted = (_NAMES[tensor.dtype], tuple(tensor.shape), tensor.nbytes)
    found = (chunk.dtype, chunk.shape, memoryview(chunk.data).nbytes)
    if wanted != found:
        raise RunMismatch(f"{chunk.name} is {found} in the checkpoint, {wanted} in the model", where="checkpoint")
    staged = torch.empty(tensor.shape, dtype=tensor.dtype)
    np.copyto(staged.reshape(-1).view(torch.uint8).numpy(), np.frombuffer(chunk.data, np.uint8))
    with torch.no_grad():
        tensor.copy_(staged)


def tensor_sums(name: str, tensor: torch.Tensor, first: int = 0) -> TensorSums:
    """See ``types.TensorSums``. ``first``: position of the first element when this is a shard along dimension 0."""
    flat = tensor.detach().reshape(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    add_up = _sums_numpy if bits.device.type == "cpu" else _sums_torch
    plain, weighted = add_up(bits, first)
    return TensorSums(name, plain % _MODULUS, weighted % _MODULUS)


def _sums_numpy(bits: torch.Tensor, first: int) -> tuple[int, int]:
    unsigned = bits.numpy().view(f"u{bits.element_size()}")
    positions = np.arange(1, min(_CPU_CHUNK, len(unsigned)) + 1, dtype=np.uint64)
    plain = weighted = 0
    for begin in range(0, len(unsigned), _CPU_CHUNK):
        values = unsigned[begin : begin + _CPU_CHUNK].astype(np.uint64)
        total = int(values.sum())
        plain += total
        weighted += int((values * positions[: len(values)]).sum()) + (first + begin) * total
    return plain, weighted


def _sums_torch(bits: torch.Tensor, first: int) -> tuple[int, int]:
    """The same on the tensor's device: 64-bit integers wrap there as well."""
    mask = (1 << 8 * bits.element_size()) - 1 if bits.element_size() < 8 else -1
    positions = torch.arange(1, min(_GPU_CHUNK, len(bits)) + 1, device=bits.device)
    plain = torch.zeros((), dtype=torch.int64, device=bits.device)
    weighted = plain.clone()
    for begin in range(0, len(bits), _GPU_CHUNK):
        values = bits[begin : begin + _GPU_CHUNK].long() & mask
        total = values.sum()
        plain += total
        weighted += (values * positions[: len(values)]).sum() + (first + begin) * total
    return int(plain), int(weighted)
