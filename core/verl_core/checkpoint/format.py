"""Tensors on storage: safetensors files of our own writing, and a manifest that finds any slice in them.

A component (``actor``, ``optimizer`` …) is a folder with one ``shard_RRRRR_<attempt>.safetensors`` per rank and
``manifest.json``. Any number of ranks writes, any number reads: readers ask for slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import orjson
from blake3 import blake3

from ..committed import content_hash, write
from ..errors import DamagedCheckpoint, DamagedError
from ..protocols import Storage
from ..reshard.slices import assemble, plan
from ..types import Bytes, Slice, TensorChunk

FORMAT = 1
_PASS = 1 << 20  # bytes
MANIFEST = "manifest.json"
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}  # dtype names of the safetensors format


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a committed file must be."""

    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A rectangular piece of a tensor in a file."""

    file: str  # beside the manifest
    start: int  # first byte in the file
    end: int  # exclusive
    offset: tuple[int, ...]  # in the global tensor
    shape: tuple[int, ...]
    hash: str  # of its bytes


@dataclass(frozen=True, slots=True)
class StoredTensor:
    dtype: str
    shape: tuple[int, ...]  # global
    chunks: tuple[StoredChunk, ...]


Manifest = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class Component:
    """What ``write_component`` made. ``digest`` does not depend on how tensors were cut into pieces and files."""

    files: Mapping[str, FileEntry]
    digest: str


def write_component(storage: Storage, folder: str, ranks: Sequence[Sequence[TensorChunk]], attempt: int) -> Component:
    """Write all ranks' pieces. Raises ``DamagedCheckpoint`` when they do not make up whole tensors.

    The digest is blake3 over (name, dtype, global shape, blake3 of the whole tensor's bytes) in the order of names.
    """
    own = _deduplicated(ranks)
    tensors = _checked([chunk for chunks in own for chunk in chunks])
    files: dict[str, FileEntry] = {}
    stored: dict[str, list[StoredChunk]] = {name: [] for name in tensors}
    for rank, chunks in enumerate(own):
        if chunks:
            name = f"shard_{rank:05d}_{attempt}.safetensors"
            files[name], written = _write_shard(storage, folder, name, chunks)
            for chunk, entry in zip(chunks, written, strict=True):
                stored[chunk.name].append(entry)
    manifest = {
        name: StoredTensor(pieces[0].dtype, pieces[0].global_shape, tuple(stored[name]))
        for name, pieces in tensors.items()
    }
    data = _encode_manifest(manifest)
    write(storage, f"{folder}/{MANIFEST}", data)
    files[MANIFEST] = FileEntry(len(data), content_hash(data))
    hashes = {name: _whole_hash(pieces, stored[name]) for name, pieces in tensors.items()}
    rows = [[name, manifest[name].dtype, manifest[name].shape, hashes[name]] for name in tensors]
    return Component(files, content_hash(orjson.dumps(rows)))


def read_manifest(data: bytes) -> Manifest:
    fields = orjson.loads(data)
    if fields["format"] != FORMAT:
        raise DamagedCheckpoint(f"format {fields['format']} is not known here", where=MANIFEST)
    return {name: _stored_tensor(tensor) for name, tensor in fields["tensors"].items()}


def read_slice(storage: Storage, folder: str, manifest: Manifest, wanted: Slice) -> TensorChunk:
    """Any piece of a tensor, from however many chunks hold it. Raises ``DamagedCheckpoint`` when a part is missing."""
    tensor = manifest.get(wanted.name)
    if tensor is None:
        raise DamagedCheckpoint(f"there is no tensor {wanted.name!r}", where=f"{storage.uri}/{folder}/{MANIFEST}")

    def fetch(index: int, start: int, end: int) -> bytes:
        chunk = tensor.chunks[index]
        return storage.get(f"{folder}/{chunk.file}", chunk.start + start, chunk.start + end)

    pieces = [Slice(wanted.name, chunk.offset, chunk.shape) for chunk in tensor.chunks]
    try:
        data = assemble(ITEM_BYTES[tensor.dtype], pieces, wanted, fetch)
    except DamagedError as error:
        raise DamagedCheckpoint(error.what, where=f"{storage.uri}/{folder}/{MANIFEST}, {error.where}") from error
    return TensorChunk(wanted.name, tensor.dtype, tensor.shape, wanted.offset, wanted.shape, data)


# --- writing ---------------------------------------------------------------------------------


def _deduplicated(ranks: Sequence[Sequence[TensorChunk]]) -> list[list[TensorChunk]]:
    """Each rank's pieces less those that an earlier rank holds too; replicas must be equal."""
    first: dict[tuple[str, tuple[int, ...], tuple[int, ...]], tuple[int, TensorChunk]] = {}
    own: list[list[TensorChunk]] = []
    for rank, chunks in enumerate(ranks):
        own.append([])
        for chunk in chunks:
            if prod(chunk.global_shape) and not prod(chunk.shape):
                continue  # a rank that got no rows of this tensor
            place = (chunk.name, chunk.offset, chunk.shape)
            if place not in first:
                first[place] = (rank, chunk)
                own[rank].append(chunk)
                continue
            earlier, replica = first[place]
            if content_hash(chunk.data) != content_hash(replica.data):
                raise DamagedCheckpoint(
                    f"ranks {earlier} and {rank} hold different bytes of the same piece", where=f"tensor {chunk.name}"
                )
    # as the safetensors library does it: largest items first, so that every tensor is aligned
    return [sorted(chunks, key=lambda c: (-ITEM_BYTES[c.dtype], c.name, c.offset)) for chunks in own]


def _checked(chunks: Sequence[TensorChunk]) -> dict[str, list[TensorChunk]]:
    """Pieces by tensor, in the order of names, once they are known to tile each tensor exactly."""
    tensors: dict[str, list[TensorChunk]] = {}
    for chunk in sorted(chunks, key=lambda c: (c.name, c.offset)):
        tensors.setdefault(chunk.name, []).append(chunk)
    for name, pieces in tensors.items():
        where = f"tensor {name}"
        if len({(piece.dtype, piece.global_shape) for piece in pieces}) > 1:
            raise DamagedCheckpoint("its pieces differ in dtype or global shape", where=where)
        for piece in pieces:
            if memoryview(piece.data).nbytes != ITEM_BYTES[piece.dtype] * prod(piece.shape):
                raise DamagedCheckpoint(f"a piece of shape {piece.shape} has the wrong number of bytes", where=where)
        try:
            plan(_slices(pieces), _whole(pieces))
        except DamagedError as error:
            raise DamagedCheckpoint(error.what, where=where) from error
        if sum(prod(piece.shape) for piece in pieces) != prod(pieces[0].global_shape):
            raise DamagedCheckpoint("its pieces overlap, or reach beyond it", where=where)
    return tensors


def _write_shard(
    storage: Storage, folder: str, name: str, chunks: Sequence[TensorChunk]
) -> tuple[FileEntry, list[StoredChunk]]:
    """One file in one pass: each byte is hashed and written as it goes by, while it is in the processor's cache."""
    header = _header(chunks)
    whole = blake3(header)
    written: list[StoredChunk] = []

    def stream() -> Iterator[Bytes]:
        yield header
        start = len(header)
        for chunk in chunks:
            own, data = blake3(), memoryview(chunk.data).cast("B")
            for begin in range(0, len(data), _PASS):
                block = data[begin : begin + _PASS]
                own.update(block)
                whole.update(block)
                yield block
            end = start + len(data)
            written.append(StoredChunk(name, start, end, chunk.offset, chunk.shape, f"blake3:{own.hexdigest()}"))
            start = end

    size = write(storage, f"{folder}/{name}", stream())
    return FileEntry(size, f"blake3:{whole.hexdigest()}"), written


def _header(chunks: Sequence[TensorChunk]) -> bytes:
    """Length (8 bytes, little endian) and JSON of the safetensors format, padded to a multiple of 8."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for chunk in chunks:
        start, end = end, end + memoryview(chunk.data).nbytes
        whole = chunk.shape == chunk.global_shape
        key = chunk.name if whole else f"{chunk.name}@{','.join(map(str, chunk.offset))}"
        fields[key] = {"dtype": chunk.dtype, "shape": chunk.shape, "data_offsets": (start, end)}
    text = orjson.dumps(fields)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _whole_hash(pieces: Sequence[TensorChunk], stored: Sequence[StoredChunk]) -> str:
    if len(pieces) == 1:
        return stored[0].hash
    data = assemble(
        ITEM_BYTES[pieces[0].dtype],
        _slices(pieces),
        _whole(pieces),
        lambda index, start, end: memoryview(pieces[index].data).cast("B")[start:end],
    )
    return content_hash(data)


def _slices(pieces: Sequence[TensorChunk]) -> list[Slice]:
    return [Slice(piece.name, piece.offset, piece.shape) for piece in pieces]


def _whole(pieces: Sequence[TensorChunk]) -> Slice:
    return Slice(pieces[0].name, (0,) * len(pieces[0].global_shape), pieces[0].global_shape)


# --- manifest --------------------------------------------------------------------------------


def _encode_manifest(manifest: Manifest) -> bytes:
    fields = {"format": FORMAT, "tensors": manifest}
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def _stored_tensor(fields: Mapping[str, Any]) -> StoredTensor:
    chunks = (
        StoredChunk(c["file"], c["start"], c["end"], tuple(c["offset"]), tuple(c["shape"]), c["hash"])
        for c in fields["chunks"]
    )
    return StoredTensor(fields["dtype"], tuple(fields["shape"]), tuple(chunks))
