"""The sums of the policy digest from raw bytes, without an engine: what was stored is held against what was loaded."""

from __future__ import annotations

import numpy as np

from ..types import Bytes, TensorSums

_MODULUS = 1 << 64
_CHUNK = 1 << 15  # elements: they fit into a processor's cache


def byte_sums(name: str, item_bytes: int, data: Bytes) -> TensorSums:
    """``types.TensorSums`` of a whole tensor, given row-major and little-endian; ``item_bytes`` is 1, 2, 4 or 8."""
    bits = np.frombuffer(data, f"<u{item_bytes}")
    positions = np.arange(1, min(_CHUNK, len(bits)) + 1, dtype=np.uint64)
    plain = weighted = 0
    for begin in range(0, len(bits), _CHUNK):
        values = bits[begin : begin + _CHUNK].astype(np.uint64)
        total = int(values.sum())  # wraps, as the definition wants it
        plain += total
        weighted += int((values * positions[: len(values)]).sum()) + begin * total
    return TensorSums(name, plain % _MODULUS, weighted % _MODULUS)
