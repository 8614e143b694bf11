"""Written by N ranks, read by M ranks, for all 1 ≤ N, M ≤ 8 and however the tensors are cut: the same bits.

No processes: a rank is a list of pieces. ``fsdp`` cuts rows as FSDP2 does (like ``torch.chunk``: the last ranks may get
nothing), ``even`` as evenly as possible, ``columns`` the last dimension as tensor parallelism does, ``mesh`` both.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from verl_core.checkpoint.format import MANIFEST, read_manifest, read_slice, write_component
from verl_core.committed import content_hash
from verl_core.errors import DamagedCheckpoint
from verl_core.types import CheckpointState, Slice, TensorChunk
from verl_core_storage.local import LocalStorage

from tests.support import made

RANKS = range(1, 9)
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, shape
SHAPES = {  # ragged, shorter than the ranks are many, one row, no element, no dimension
    "embed": ("F32", (13, 4)),
    "gate": ("BF16", (8, 3)),
    "qkv": ("F16", (6, 5, 7)),
    "bias": ("F32", (3,)),
    "ids": ("I64", (1, 9)),
    "mask": ("BOOL", (17,)),
    "none": ("F32", (0, 4)),
    "step": ("I64", ()),
}
REPLICATED = ("bias", "step")  # held whole by every rank
ITEM = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "BOOL": 1}


def content() -> dict[str, np.ndarray]:
    """Any bits, not-a-numbers with payloads among them: [*shape, bytes of an item]."""
    draw = np.random.default_rng(7)
    return {n: draw.integers(0, 256, (*shape, ITEM[d]), np.uint8) for n, (d, shape) in SHAPES.items()}


WHOLE = content()


# --- how a tensor is cut ---------------------------------------------------------------------


def fsdp(shape: tuple[int, ...], rank: int, world: int) -> Box:
    size = -(-shape[0] // world)
    start = min(rank * size, shape[0])
    return (start, *[0] * (len(shape) - 1)), (min(size, shape[0] - start), *shape[1:])


def even(shape: tuple[int, ...], rank: int, world: int) -> Box:
    start, end = rank * shape[0] // world, (rank + 1) * shape[0] // world
    return (start, *[0] * (len(shape) - 1)), (end - start, *shape[1:])


def columns(shape: tuple[int, ...], rank: int, world: int) -> Box:
    start, end = rank * shape[-1] // world, (rank + 1) * shape[-1] // world
    return (*[0] * (len(shape) - 1), start), (*shape[:-1], end - start)


def mesh(shape: tuple[int, ...], rank: int, world: int) -> Box:
    """Rows over data-parallel ranks, columns over tensor-parallel ones."""
    parallel = 2 if world % 2 == 0 and len(shape) > 1 else 1
    rows, row_shape = fsdp(shape, rank // parallel, -(-world // parallel))
    across, column_shape = columns(row_shape, rank % parallel, parallel)
    return tuple(a + b for a, b in zip(rows, across, strict=True)), column_shape


CUTS: dict[str, Callable[[tuple[int, ...], int, int], Box]] = {
    "fsdp": fsdp, "even": even, "columns": columns, "mesh": mesh
}  # fmt: skip


def box(name: str, cut: str, rank: int, world: int) -> Box:
    """The piece of a tensor that a rank holds."""
    shape = SHAPES[name][1]
    whole = ((0,) * len(shape), shape)
    return whole if name in REPLICATED or not shape else CUTS[cut](shape, rank, world)


def bits(name: str, piece: Box) -> bytes:
    offset, shape = piece
    index = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    return np.ascontiguousarray(WHOLE[name][index]).tobytes()


def rank_of(cut: str, rank: int, world: int) -> list[TensorChunk]:
    """What one rank hands to a save."""
    chunks = []
    for name, (dtype, shape) in SHAPES.items():
        offset, size = box(name, cut, rank, world)
        chunks.append(TensorChunk(name, dtype, shape, offset, size, bits(name, (offset, size))))
    return chunks


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("world", RANKS)
def test_the_cuts_of_these_tests_are_partitions(cut: str, world: int) -> None:
    for name, (_, shape) in SHAPES.items():
        if shape and name not in REPLICATED:
            seen = np.zeros(shape, np.int64)
            for rank in range(world):
                offset, size = box(name, cut, rank, world)
                seen[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))] += 1
            assert (seen == 1).all(), name


# --- format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("writer_cut", CUTS)
@pytest.mark.parametrize("writers", RANKS)
def test_any_number_of_ranks_reads_what_any_number_wrote_bit_for_bit(
    tmp_path: Path, writers: int, writer_cut: str
) -> None:
    storage = LocalStorage(str(tmp_path))
    ranks = [rank_of(writer_cut, rank, writers) for rank in range(writers)]
    component = write_component(storage, "actor", ranks, attempt=1)
    manifest = read_manifest(storage.get(f"actor/{MANIFEST}"))
    for readers, cut, name in product(RANKS, CUTS, SHAPES):
        for rank in range(readers):
            piece = box(name, cut, rank, readers)
            found = read_slice(storage, "actor", manifest, Slice(name, *piece))
            assert bytes(found.data) == bits(name, piece), (readers, cut, name, rank)
            assert (found.dtype, found.global_shape) == SHAPES[name]
    one = write_component(storage, "one", [rank_of("fsdp", 0, 1)], attempt=1)
    assert component.digest == one.digest, "the digest knows no layout"


@pytest.mark.parametrize("writers", RANKS)
def test_replicas_are_stored_once_and_empty_pieces_not_at_all(tmp_path: Path, writers: int) -> None:
    storage = LocalStorage(str(tmp_path))
    write_component(storage, "actor", [rank_of("fsdp", rank, writers) for rank in range(writers)], attempt=1)
    manifest = read_manifest(storage.get(f"actor/{MANIFEST}"))
    for name, tensor in manifest.items():
        held = {box(name, "fsdp", rank, writers) for rank in range(writers)}
        wanted = {piece for piece in held if prod(piece[1])} if prod(SHAPES[name][1]) else held
        assert {(chunk.offset, chunk.shape) for chunk in tensor.chunks} == wanted
        assert len(tensor.chunks) == len(wanted)


@pytest.mark.parametrize("writers", range(2, 9))
def test_c12_a_replica_that_differs_on_any_one_rank_is_never_saved(tmp_path: Path, writers: int) -> None:
    storage = LocalStorage(str(tmp_path))
    for odd in range(1, writers):
        ranks = [rank_of("fsdp", rank, writers) for rank in range(writers)]
        place = next(i for i, chunk in enumerate(ranks[odd]) if chunk.name == "bias")
        ranks[odd][place] = TensorChunk("bias", "F32", (3,), (0,), (3,), bytes(12))
        with pytest.raises(DamagedCheckpoint, match=f"tensor bias: ranks 0 and {odd} hold different bytes"):
            write_component(storage, "actor", ranks, attempt=1)


# --- whole checkpoints -----------------------------------------------------------------------


def rng_of(rank: int) -> bytes:
    return bytes([rank, *range(20)])


def save(folder: Path, writers: int) -> None:
    """A checkpoint of N ranks with policy, optimizer and the state of each rank's generators."""
    held = [rank_of("fsdp", rank, writers) for rank in range(writers)]
    rng = [[TensorChunk("rng", "U8", (writers, 21), (rank, 0), (1, 21), rng_of(rank))] for rank in range(writers)]
    tensors = {"actor": held, "optimizer": held, "rng": rng}
    made.checkpointer(folder).save(CheckpointState(4, 0, 1, tensors, {}, {"policy_digest": "sums:4"}))


@pytest.mark.parametrize("writers", RANKS)
def test_c12_a_whole_checkpoint_of_n_ranks_gives_m_ranks_their_state_and_every_ranks_generators(
    tmp_path: Path, writers: int
) -> None:
    save(tmp_path, writers)
    checkpointer = made.checkpointer(tmp_path)
    reader = checkpointer.open(checkpointer.list()[0])
    for readers, component in product(RANKS, ("actor", "optimizer")):
        for rank, name in product(range(readers), SHAPES):
            piece = box(name, "even", rank, readers)
            assert bytes(reader.read(component, Slice(name, *piece)).data) == bits(name, piece)
    for rank in range(writers):
        assert bytes(reader.read("rng", Slice("rng", (rank, 0), (1, 21))).data) == rng_of(rank)
    chunks = read_manifest(reader.file(f"rng/{MANIFEST}"))["rng"].chunks
    assert [chunk.hash for chunk in sorted(chunks, key=lambda c: c.offset)] == [
        content_hash(rng_of(rank)) for rank in range(writers)
    ]
    with pytest.raises(DamagedCheckpoint):
        reader.read("rng", Slice("rng", (writers, 0), (1, 21)))


@pytest.mark.parametrize("writers", range(2, 9))
def test_c04_without_any_one_ranks_file_nothing_counts(tmp_path: Path, writers: int) -> None:
    save(tmp_path, writers)
    for shard in sorted((tmp_path / "step_000004").glob("*/shard_*")):
        data = shard.read_bytes()
        shard.unlink()
        assert made.checkpointer(tmp_path).list() == []
        shard.write_bytes(data)
    assert len(made.checkpointer(tmp_path).list()) == 1
