"""The policy digest: one short name for all parameters, cheap enough for every step."""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

from ..types import TensorSums

_MODULUS = 1 << 64


def policy_digest(sums: Iterable[TensorSums]) -> str:
    """``sums:<blake3>`` over (name, plain, weighted) in name order; the sums of a tensor's shards are added up."""
    whole: dict[str, tuple[int, int]] = {}
    for part in sums:
        plain, weighted = whole.get(part.name, (0, 0))
        whole[part.name] = (plain + part.plain) % _MODULUS, (weighted + part.weighted) % _MODULUS
    text = "".join(f"{name}\x1f{plain}\x1f{weighted}\n" for name, (plain, weighted) in sorted(whole.items()))
    return f"sums:{blake3(text.encode()).hexdigest()}"
