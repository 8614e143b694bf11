"""Which checkpoints may go: a pure rule, so that it can be tried on every history."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..types import CheckpointRef


def to_delete(refs: Sequence[CheckpointRef], keep: int, protected: Collection[int]) -> list[CheckpointRef]:
    """Committed checkpoints beyond the newest ``keep``, oldest first, without the steps in ``protected``.

    ``protected`` names what must outlive the count: the newest step that is known to be good, the resume point.
    """
    if keep < 1:
        raise ValueError("at least one checkpoint is kept")
    newest_first = sorted(refs, key=lambda ref: ref.step, reverse=True)
    return [ref for ref in reversed(newest_first[keep:]) if ref.step not in protected]
