"""The nearest name to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate most like ``word`` (``difflib`` ratio of at least ``cutoff``), or None."""
    folded = {c.lower().replace("-", "_"): c for c in sorted(candidates, reverse=True)}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def did_you_mean(word: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """A remedy: ``did you mean 'x'?``, or ``otherwise`` (default: the known names) when nothing is near."""
    known = sorted(set(candidates))
    found = nearest(word, known)
    if found is not None:
        return f"did you mean {found!r}?"
    return otherwise or "known: " + ", ".join(known)
