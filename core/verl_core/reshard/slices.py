"""Plans that cut a wanted piece of a tensor out of stored pieces: boxes in any number of dimensions, however cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import DamagedError
from ..types import BuildContext, Bytes, Slice


@dataclass
class SlicesConfig:
    """The resharder has nothing to set."""


def build_slices(config: SlicesConfig, context: BuildContext) -> Slices:
    return Slices()


class Slices:
    """A ``Resharder``."""

    def plan(self, stored: Sequence[Slice], wanted: Slice) -> Sequence[tuple[int, Slice]]:
        return plan(stored, wanted)


def plan(stored: Sequence[Slice], wanted: Slice) -> list[tuple[int, Slice]]:
    """Pairs (index of the stored piece, overlap in global coordinates): disjoint, and together exactly ``wanted``.

    Stored pieces may overlap (replicas): the first one is taken. Raises ``DamagedError`` when a part is nowhere.
    """
    pairs: list[tuple[int, Slice]] = []
    left = [wanted] if prod(wanted.shape) else []
    for index, piece in enumerate(stored):
        if not left:
            break
        if piece.name != wanted.name:
            continue
        rest: list[Slice] = []
        for box in left:
            common = _overlap(box, piece)
            if common is None:
                rest.append(box)
            else:
                pairs.append((index, common))
                rest.extend(_without(box, common))
        left = rest
    if left:
        raise DamagedError(f"no stored piece holds {left[0].shape} at {left[0].offset}", where=f"tensor {wanted.name}")
    return pairs


def assemble(item_bytes: int, stored: Sequence[Slice], wanted: Slice, fetch: Callable[[int, int, int], Bytes]) -> Bytes:
    """The bytes of ``wanted``, row-major. ``fetch(index, start, end)`` reads bytes of a stored piece.

    A piece that is wanted whole is handed through without a copy.
    """
    pairs = plan(stored, wanted)
    if len(pairs) == 1 and stored[pairs[0][0]] == wanted:
        return fetch(pairs[0][0], 0, item_bytes * prod(wanted.shape))
    out = np.empty((*wanted.shape, item_bytes), np.uint8)
    for index, part in pairs:
        piece = stored[index]
        row_bytes = item_bytes * prod(piece.shape[1:])
        first, rows = part.offset[0] - piece.offset[0], part.shape[0]
        data = fetch(index, first * row_bytes, (first + rows) * row_bytes)
        block = np.frombuffer(data, np.uint8).reshape(rows, *piece.shape[1:], item_bytes)
        out[_within(part, wanted)] = block[(slice(None), *_within(part, piece)[1:])]
    return out.reshape(-1).data


def _within(part: Slice, whole: Slice) -> tuple[slice, ...]:
    """The index of ``part`` in an array that holds ``whole``."""
    starts = (p - w for p, w in zip(part.offset, whole.offset, strict=True))
    return tuple(slice(start, start + size) for start, size in zip(starts, part.shape, strict=True))


def _overlap(a: Slice, b: Slice) -> Slice | None:
    starts = tuple(map(max, a.offset, b.offset))
    ends = (min(x + m, y + n) for x, m, y, n in zip(a.offset, a.shape, b.offset, b.shape, strict=True))
    shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
    return Slice(a.name, starts, shape) if all(size > 0 for size in shape) else None


def _without(box: Slice, part: Slice) -> Iterator[Slice]:
    """``box`` less ``part``, which lies in it, as disjoint boxes: slabs before and after, dimension by dimension."""
    offset, shape = list(box.offset), list(box.shape)
    for dim, (start, size) in enumerate(zip(part.offset, part.shape, strict=True)):
        end, box_end = start + size, offset[dim] + shape[dim]
        for low, high in ((offset[dim], start), (end, box_end)):
            if low < high:
                yield Slice(
                    box.name, (*offset[:dim], low, *offset[dim + 1 :]), (*shape[:dim], high - low, *shape[dim + 1 :])
                )
        offset[dim], shape[dim] = start, size
