"""Sums from bytes are those of the engine: two codes that must never differ by a bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl_core.interchange.sums import byte_sums
from verl_core.interchange.tensors import DTYPES, dtype_name, from_bytes, raw_bytes
from verl_core_engines.tensors import tensor_sums


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3), (1 << 15,), ((1 << 15) + 1,), (3, 1 << 15)])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "I64", "BOOL"])
def test_sums_of_bytes_are_the_sums_of_the_engine(dtype: str, shape: tuple[int, ...]) -> None:
    size = DTYPES[dtype].itemsize * int(np.prod(shape))
    data = np.random.default_rng(3).integers(0, 2 if dtype == "BOOL" else 256, size, np.uint8).tobytes()
    tensor = from_bytes(data, dtype, shape)
    assert byte_sums("w", DTYPES[dtype].itemsize, data) == tensor_sums("w", tensor)
    assert (bytes(raw_bytes(tensor)), dtype_name("w", tensor)) == (data, dtype)


def test_sums_know_the_order_of_the_elements() -> None:
    tensor = torch.arange(6, dtype=torch.float32)
    assert byte_sums("w", 4, raw_bytes(tensor)) != byte_sums("w", 4, raw_bytes(tensor.flip(0)))


def test_bytes_of_a_transposed_tensor_are_row_major() -> None:
    tensor = torch.arange(6, dtype=torch.int32).reshape(2, 3).t()
    assert bytes(raw_bytes(tensor)) == tensor.contiguous().numpy().tobytes()
