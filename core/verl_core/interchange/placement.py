"""Where the pieces of sharded tensors belong, from what a rank file says of them, and whole tensors out of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from ..checkpoint.format import ITEM_BYTES
from ..errors import DamagedError, InputError
from ..reshard.slices import assemble
from ..types import Bytes, Slice
from .pickles import Record, ShardedValue
from .tensors import dtype_name, from_bytes, raw_bytes

_EXPORT = "save it with verl as a Hugging Face model (checkpoint.save_contents with hf_model), and start from that"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank holds of a tensor."""

    place: Slice
    global_shape: tuple[int, ...]
    data: torch.Tensor
    sharded: bool


def chunk_of(shape: Sequence[int], mesh: Sequence[int], at: Sequence[int], dims: Sequence[int | None]) -> Slice:
    """The box of a rank (name left empty): each dimension of the mesh cuts one of the tensor's into equal chunks, the
    last ones shorter or empty, as ``torch.chunk`` does; None does not cut."""
    offset, size = [0] * len(shape), list(shape)
    for parts, index, dim in zip(mesh, at, dims, strict=True):
        if dim is None:
            continue
        step = -(-size[dim] // parts)
        start = min(size[dim], step * index)
        offset[dim], size[dim] = offset[dim] + start, min(step, size[dim] - start)
    return Slice("", tuple(offset), tuple(size))


def pieces_of(name: str, value: object, rank: int) -> list[Piece]:
    """The pieces in a value of a rank file. Raises InputError for a kind of sharding that is not known here."""
    if isinstance(value, ShardedValue):
        try:
            return _sharded(name, value, rank) if type(value).kind == "ShardedTensor" else [_placed(name, value, rank)]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            what = f"its placement is not understood ({type(error).__name__}: {error})"
            raise InputError(what, where=f"rank {rank}, tensor {name}", remedy=_EXPORT) from error
    if not isinstance(value, torch.Tensor):
        raise InputError(f"is a {type(value).__name__}, no tensor", where=f"rank {rank}, {name}", remedy=_EXPORT)
    shape = tuple(value.shape)
    return [Piece(Slice(name, (0,) * len(shape), shape), shape, value, sharded=False)]


def whole_tensor(name: str, ranks: Sequence[Sequence[Piece]]) -> torch.Tensor:
    """Put the pieces of all ranks together. Raises DamagedError when a part is missing or replicas differ."""
    where = f"tensor {name}"
    pieces = [piece for rank in ranks for piece in rank]
    if len({(piece.global_shape, piece.data.dtype, piece.sharded) for piece in pieces}) != 1:
        raise DamagedError("ranks disagree about its shape or type", where=where, remedy="is the folder of one save?")
    kept: dict[tuple[tuple[int, ...], tuple[int, ...]], Piece] = {}
    for piece in pieces:
        twin = kept.setdefault((piece.place.offset, piece.place.shape), piece)
        if twin is not piece and raw_bytes(twin.data) != raw_bytes(piece.data):
            raise DamagedError("ranks hold different values of one piece", where=where, remedy="import another step")
    stored = [piece for piece in kept.values() if prod(piece.place.shape) or not prod(piece.global_shape)]
    shape, dtype = pieces[0].global_shape, dtype_name(name, pieces[0].data)

    def fetch(index: int, start: int, end: int) -> Bytes:
        return raw_bytes(stored[index].data)[start:end]

    wanted = Slice(name, (0,) * len(shape), shape)
    return from_bytes(assemble(ITEM_BYTES[dtype], [piece.place for piece in stored], wanted, fetch), dtype, shape)


# --- what torch stores -----------------------------------------------------------------------


def _placed(name: str, value: ShardedValue, rank: int) -> Piece:
    """A ``DTensor``: a local tensor, a mesh of ranks, and a placement for each dimension of the mesh."""
    spec, local = value.__dict__["_spec"], value.__dict__["_local_tensor"]
    ranks = mesh_ranks(spec.fields["mesh"].fields)
    dims = [_cut(name, placement, rank) for placement in spec.fields["placements"]]
    for _, order in spec.fields.get("shard_order") or ():
        if list(order) != sorted(order):
            raise InputError(f"is cut in the order {order}", where=f"rank {rank}, tensor {name}", remedy=_EXPORT)
    at = _coordinate(name, spec.fields["mesh"].fields, ranks, rank)
    shape = tuple(value.shape)
    box = chunk_of(shape, ranks.shape, at, dims)
    if box.shape != tuple(local.shape):
        what = f"a piece of shape {tuple(local.shape)} stands where {box.shape} belongs"
        raise InputError(what, where=f"rank {rank}, tensor {name}", remedy=_EXPORT)
    return Piece(Slice(name, box.offset, box.shape), shape, local, sharded=True)


def _coordinate(name: str, mesh: Mapping[str, object], ranks: npt.NDArray[np.int64], rank: int) -> list[int]:
    """Where a rank stands in its mesh: what the mesh says must be what the file's name says."""
    found = np.argwhere(ranks == rank).tolist()
    said = mesh.get("_coordinate_on_dim")
    if len(found) != 1 or (isinstance(said, list | tuple) and list(said) != found[0]):
        what = f"is of the rank at {said} of {ranks.tolist()}"
        raise DamagedError(
            what, where=f"file of rank {rank}, tensor {name}", remedy="copy the files of all ranks again"
        )
    return [int(index) for index in found[0]]


def _cut(name: str, placement: Record, rank: int) -> int | None:
    """The dimension of the tensor that a placement cuts, None for a replica."""
    kind = type(placement).kind
    if kind not in ("Shard", "Replicate"):
        raise InputError(f"is placed as {kind}", where=f"rank {rank}, tensor {name}", remedy=_EXPORT)
    return int(placement.fields["dim"]) if kind == "Shard" else None


def mesh_ranks(fields: Mapping[str, object]) -> npt.NDArray[np.int64]:
    """The ranks of a device mesh in its shape: an array, or (since torch 2.9) a layout over a flat list of ranks."""
    mesh = fields.get("mesh")
    if isinstance(mesh, torch.Tensor):
        return mesh.numpy().astype(np.int64)
    flat, layout = fields["_rank_map"], fields["_layout"]
    if not isinstance(flat, torch.Tensor) or not isinstance(layout, Record):
        raise TypeError("a mesh without ranks")
    axes = [axis.fields for axis in layout.fields["axes"]] if "axes" in layout.fields else _axes(layout.fields)
    index = np.zeros((), np.int64)
    for axis in axes:
        index = index[..., None] + _offsets(axis["shape"], axis["stride"])
    return flat.numpy().astype(np.int64)[index]


def _axes(layout: Mapping[str, object]) -> list[dict[str, object]]:
    shapes, strides = _tuple(layout["shape"]), _tuple(layout["stride"])
    return [{"shape": shape, "stride": stride} for shape, stride in zip(shapes, strides, strict=True)]


def _offsets(shape: object, stride: object) -> npt.NDArray[np.int64]:
    """Positions along one axis, which may be made of several, the last one running fastest."""
    found = np.zeros(1, np.int64)
    for size, step in zip(_tuple(shape), _tuple(stride), strict=True):
        inner = _offsets(size, step) if isinstance(size, tuple) else np.arange(int(str(size))) * int(str(step))
        found = (found[:, None] + inner).reshape(-1)
    return found


def _tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _sharded(name: str, value: ShardedValue, rank: int) -> list[Piece]:
    """A ``ShardedTensor``: its local pieces say themselves where they belong."""
    shards, metadata = value.stored[0], value.stored[1]
    shape = tuple(metadata.fields["size"])
    found = []
    for shard in shards:
        place, local = shard.fields["metadata"].fields, shard.fields["tensor"]
        box = Slice(name, tuple(place["shard_offsets"]), tuple(place["shard_sizes"]))
        if box.shape != tuple(local.shape):
            what = f"a piece of shape {tuple(local.shape)} stands where {box.shape} belongs"
            raise InputError(what, where=f"rank {rank}, tensor {name}", remedy=_EXPORT)
        found.append(Piece(box, shape, local, sharded=True))
    return found
