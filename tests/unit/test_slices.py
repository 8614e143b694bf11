"""Plans over boxes: whatever was cut, whatever is wanted, each element comes exactly once and from its place."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_core.errors import DamagedError
from verl_core.protocols import Resharder
from verl_core.reshard.slices import SlicesConfig, assemble, build_slices, plan
from verl_core.types import BuildContext, Slice

shapes = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Slice:
    """Any piece of a tensor, empty ones too."""
    starts = tuple(draw(st.integers(0, size)) for size in shape)
    ends = tuple(draw(st.integers(start, size)) for start, size in zip(starts, shape, strict=True))
    return Slice("w", starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))


@st.composite
def partitions(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Slice]:
    """A tensor cut in any of its dimensions, in any order, with replicas among the pieces."""
    cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))}) for size in shape]
    pieces = [
        Slice("w", tuple(low for low, _ in cell), tuple(high - low for low, high in cell))
        for cell in product(*(pairwise(cut) for cut in cuts))
    ]
    replicas = draw(st.lists(boxes(shape), max_size=3))
    return draw(st.permutations([*pieces, *replicas, Slice("other", (0,), (9,))]))


def index(piece: Slice) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.shape, strict=True))


@given(st.data(), shapes)
def test_every_element_of_any_slice_is_planned_exactly_once(data: st.DataObject, shape: tuple[int, ...]) -> None:
    stored, wanted = data.draw(partitions(shape)), data.draw(boxes(shape))
    counts = np.zeros(shape, np.int64)
    for number, part in plan(stored, wanted):
        held = np.zeros(shape, bool)
        held[index(stored[number])] = True
        assert held[index(part)].all()
        counts[index(part)] += 1
    expected = np.zeros(shape, np.int64)
    expected[index(wanted)] = 1
    assert (counts == expected).all()


@given(st.data(), shapes, st.sampled_from([np.uint8, np.float16, np.float32, np.int64]))
def test_any_partition_gives_any_slice_bit_for_bit(data: st.DataObject, shape: tuple[int, ...], dtype: type) -> None:
    whole: np.ndarray = np.arange(1, prod(shape) + 1).astype(dtype).reshape(shape)
    stored, wanted = data.draw(partitions(shape)), data.draw(boxes(shape))

    def fetch(number: int, start: int, end: int) -> bytes:
        return np.ascontiguousarray(whole[index(stored[number])]).tobytes()[start:end]

    assert (
        bytes(assemble(whole.itemsize, stored, wanted, fetch)) == np.ascontiguousarray(whole[index(wanted)]).tobytes()
    )


def test_only_the_rows_that_are_needed_are_read() -> None:
    read: list[tuple[int, int, int]] = []

    def fetch(number: int, start: int, end: int) -> bytes:
        read.append((number, start, end))
        return bytes(end - start)

    stored = [Slice("w", (0, 0), (4, 3)), Slice("w", (4, 0), (4, 3))]
    assemble(2, stored, Slice("w", (3, 0), (2, 3)), fetch)
    assert read == [(0, 18, 24), (1, 0, 6)]


def test_a_hole_is_an_error_that_names_the_tensor_and_the_place() -> None:
    with pytest.raises(DamagedError, match=r"tensor w: no stored piece holds \(1, 3\) at \(2, 0\)"):
        plan([Slice("w", (0, 0), (2, 3)), Slice("w", (3, 0), (2, 3))], Slice("w", (0, 0), (5, 3)))
    with pytest.raises(DamagedError, match="tensor w"):
        plan([], Slice("w", (), ()))


def test_a_tensor_without_dimensions_is_one_piece() -> None:
    assert plan([Slice("w", (), ())], Slice("w", (), ())) == [(0, Slice("w", (), ()))]


def test_it_is_built_as_a_resharder() -> None:
    resharder: Resharder = build_slices(SlicesConfig(), BuildContext())
    assert resharder.plan([Slice("w", (0,), (2,))], Slice("w", (1,), (1,))) == [(0, Slice("w", (1,), (1,)))]
