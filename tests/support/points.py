"""An operation killed, held or failed at each of its operations in turn, on a new folder each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from verl_core.testing.faulty import killed_at


def killed_everywhere(
    folder: Path,
    prepare: Callable[[Path], object],
    operation: Callable[[Path], object],
    *,
    first: int = 1,
    every: int = 1,
) -> Iterator[Path]:
    """Kill ``operation`` at its crash points ``first``, ``first + every`` …; yields each root that is left behind, the
    last one by an operation that came to its end."""
    for n in count(first, every):
        root = folder / f"killed at {n}"
        prepare(root)
        killed = killed_at(n, partial(operation, root))
        yield root
        if not killed:
            return
