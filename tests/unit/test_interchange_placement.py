"""Where a rank's piece belongs: held against torch itself, for every small mesh and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl_core.errors import DamagedError
from verl_core.interchange.pickles import Record
from verl_core.interchange.placement import Piece, chunk_of, mesh_ranks, whole_tensor
from verl_core.types import Slice

from tests.support.verl_saves import as_rank


@given(rows=st.integers(0, 40), parts=st.integers(1, 12))
def test_pieces_of_one_dimension_are_those_of_torch_chunk(rows: int, parts: int) -> None:
    chunks = [len(c) for c in torch.arange(rows).chunk(parts)] if rows else []
    boxes = [chunk_of((rows, 3), (parts,), (index,), (0,)) for index in range(parts)]
    assert [b.shape[0] for b in boxes] == [*chunks, *[0] * (parts - len(chunks))][:parts]
    assert sum(b.shape[0] for b in boxes) == rows
    assert all(b.offset[0] == min(rows, i * -(-rows // parts)) for i, b in enumerate(boxes))


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (2, 3)])
def test_pieces_on_a_mesh_are_those_that_torch_distributes(mesh: tuple[int, ...]) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    world = int(np.prod(mesh))
    for rank in range(world):
        with as_rank(rank, world):
            there = init_device_mesh("cpu", mesh)
            for dims in ([0] * len(mesh), [None, 0][-len(mesh) :], [1, 0][-len(mesh) :]):
                placements = [Replicate() if d is None else Shard(d) for d in dims]
                shape, offset = compute_local_shape_and_global_offset((7, 5), there, placements)
                at = there.get_coordinate() or ()
                box = chunk_of((7, 5), mesh, at, dims)
                assert box.shape == shape
                assert not all(shape) or box.offset == offset


def layout(*axes: tuple[Any, Any]) -> Record:
    record = Record()
    record.fields["axes"] = tuple(_axis(*axis) for axis in axes)
    return record


def _axis(shape: Any, stride: Any) -> Record:
    record = Record()
    record.fields |= {"shape": shape, "stride": stride}
    return record


def test_a_mesh_is_read_in_all_the_forms_that_torch_has_written() -> None:
    wanted = [[0, 1, 2], [3, 4, 5]]
    flat = torch.arange(6)
    older = _axis((2, 3), (3, 1))  # one layout with an entry for each dimension
    assert mesh_ranks({"mesh": flat.reshape(2, 3)}).tolist() == wanted
    assert mesh_ranks({"_rank_map": flat, "_layout": older}).tolist() == wanted
    assert mesh_ranks({"_rank_map": flat, "_layout": layout(((2,), (3,)), ((3,), (1,)))}).tolist() == wanted
    assert mesh_ranks({"_rank_map": flat, "_layout": layout((2, 1), (3, 2))}).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert mesh_ranks({"_rank_map": flat, "_layout": layout(((2, 3), (1, 2)))}).tolist() == [0, 2, 4, 1, 3, 5]


def piece(offset: int, values: list[float], total: int = 4, *, sharded: bool = True) -> Piece:
    return Piece(Slice("w", (offset,), (len(values),)), (total,), torch.tensor(values), sharded)


def test_pieces_make_up_the_whole_in_any_order() -> None:
    ranks = [[piece(2, [3.0, 4.0])], [piece(0, [1.0, 2.0])], [piece(4, [])]]
    assert whole_tensor("w", ranks).tolist() == [1, 2, 3, 4]


def test_a_tensor_without_elements_is_whole() -> None:
    assert whole_tensor("w", [[piece(0, [], 0)], [piece(0, [], 0)]]).tolist() == []


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([[piece(0, [1.0, 2.0])], [piece(3, [4.0])]], "no stored piece"),
        ([[piece(0, [1.0, 2.0])], [piece(0, [1.0, 9.0])], [piece(2, [3.0, 4.0])]], "different values"),
        ([[piece(0, [1.0], 1)], [piece(0, [1.0], 2)]], "disagree"),
    ],
)
def test_c04_a_missing_or_doubtful_piece_is_an_error(ranks: list[list[Piece]], reason: str) -> None:
    with pytest.raises(DamagedError, match=reason):
        whole_tensor("w", ranks)


def test_a_value_that_every_rank_has_must_be_the_same_everywhere() -> None:
    same = [[piece(0, [1.0, 2.0, 3.0, 4.0], sharded=False)] for _ in range(3)]
    assert whole_tensor("w", same).tolist() == [1, 2, 3, 4]
    with pytest.raises(DamagedError, match="different values"):
        whole_tensor("w", [*same, [piece(0, [1.0, 2.0, 3.0, 5.0], sharded=False)]])
