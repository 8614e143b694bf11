"""Retention: the newest are kept, the protected are kept, and there is always one left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.checkpoint.retention import to_delete
from verl_core.types import CheckpointRef


def ref(step: int) -> CheckpointRef:
    return CheckpointRef(step, 0, 0, f"step_{step:06d}", "blake3:0", 1)


def test_what_is_beyond_the_newest_goes_oldest_first() -> None:
    assert to_delete([ref(20), ref(5), ref(15), ref(10)], 2, ()) == [ref(5), ref(10)]
    assert to_delete([ref(5)], 3, ()) == []


@given(st.sets(st.integers(0, 50)), st.integers(1, 5), st.sets(st.integers(0, 50)))
def test_the_newest_and_the_protected_stay_and_all_else_goes(steps: set[int], keep: int, protected: set[int]) -> None:
    gone = {r.step for r in to_delete([ref(step) for step in steps], keep, protected)}
    newest = set(sorted(steps)[-keep:])
    assert gone == steps - newest - protected


def test_keeping_none_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        to_delete([ref(5)], 0, ())
