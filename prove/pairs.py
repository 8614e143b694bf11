"""Two workers on one batch, held or killed against each other at every pair of operations of their commits."""

from __future__ import annotations

import tempfile
from pathlib import Path

from verl_core.errors import VerlError
from verl_core.testing.disk import without_syncs

from tests.support.pairs import held_at_pairs, killed_beside


def prove(seed: int, budget_s: float) -> dict[str, int | list[str]]:
    """All of them, whatever ``seed`` and ``budget_s`` are. Returns ``race_pairs`` and ``violations``."""
    pairs, violations = 0, list[str]()
    with tempfile.TemporaryDirectory() as name, without_syncs():
        try:
            pairs += held_at_pairs(Path(name, "held"), 1)[0]
            pairs += killed_beside(Path(name, "killed"), 1)
        except (VerlError, OSError, AssertionError) as error:
            violations.append(f"pairs, after {pairs}: {type(error).__name__}: {error}")
    return {"race_pairs": pairs, "violations": violations}


if __name__ == "__main__":
    print(prove(seed=0, budget_s=60))
