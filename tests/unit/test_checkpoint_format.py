"""Shards and manifest: valid safetensors, any number of ranks in, any slice out, and a digest that knows no layout."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from verl_core.checkpoint import format
from verl_core.checkpoint.format import MANIFEST, Manifest, read_manifest, read_slice, write_component
from verl_core.committed import content_hash
from verl_core.errors import DamagedCheckpoint
from verl_core.protocols import FileStorage
from verl_core.types import Slice, TensorChunk
from verl_core_storage.local import LocalStorage

from tests.support.made import pieces, weights

SCALAR = TensorChunk("step", "I64", (), (), (), np.int64(7).tobytes())


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def manifest_of(storage: FileStorage) -> Manifest:
    return read_manifest(storage.get(f"actor/{MANIFEST}"))


def read(storage: FileStorage, wanted: Slice) -> TensorChunk:
    return read_slice(storage, "actor", manifest_of(storage), wanted)


def test_one_ranks_file_is_what_the_safetensors_library_reads(storage: LocalStorage) -> None:
    tensors = {
        "w": weights(3),
        "ids": np.arange(5, dtype=np.int64),
        "mask": np.array([True, False, True]),
        "empty": np.zeros((0, 4), np.float32),
    }
    names = {"w": "F32", "ids": "I64", "mask": "BOOL", "empty": "F32"}
    chunks = [TensorChunk(k, names[k], v.shape, (0,) * v.ndim, v.shape, v.tobytes()) for k, v in tensors.items()]
    half = TensorChunk("half", "BF16", (2, 3), (0, 0), (2, 3), bytes(range(12)))
    written = write_component(storage, "actor", [[*chunks, half, SCALAR]], attempt=4)
    assert list(written.files) == ["shard_00000_4.safetensors", MANIFEST]
    path = f"{storage.uri}/actor/shard_00000_4.safetensors"
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == {*tensors, "half", "step"}
    data = Path(path).read_bytes()
    assert (8 + int.from_bytes(data[:8], "little")) % 8 == 0
    del chunks[-1:]
    write_component(storage, "plain", [[*chunks, SCALAR]], attempt=4)
    found = load_file(f"{storage.uri}/plain/shard_00000_4.safetensors")
    assert found["step"] == 7
    for name in ("w", "ids", "mask"):
        np.testing.assert_array_equal(found[name], tensors[name])


@pytest.mark.parametrize("at_once", [7, 48, 1 << 20])
def test_files_and_chunks_carry_their_hashes(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(format, "_PASS", at_once)
    written = write_component(storage, "actor", [[c] for c in pieces("w", weights(0), 2)], attempt=0)
    for name, entry in written.files.items():
        data = storage.get(f"actor/{name}")
        assert (entry.size, entry.hash) == (len(data), content_hash(data))
    tensor = manifest_of(storage)["w"]
    assert (tensor.dtype, tensor.shape) == ("F32", (6, 4))
    for chunk in tensor.chunks:
        assert content_hash(storage.get(f"actor/{chunk.file}", chunk.start, chunk.end)) == chunk.hash
    assert set(orjson.loads(storage.get(f"actor/{MANIFEST}"))) == {"format", "tensors"}


def test_tensors_without_dimensions_or_elements_come_back(storage: LocalStorage) -> None:
    empty = TensorChunk("e", "F32", (0, 3), (0, 0), (0, 3), b"")
    write_component(storage, "actor", [[SCALAR, empty], []], attempt=0)
    assert read(storage, Slice("step", (), ())) == SCALAR
    assert bytes(read(storage, Slice("e", (0, 0), (0, 3))).data) == b""


def test_ranks_that_got_nothing_of_a_tensor_are_fine(storage: LocalStorage) -> None:
    ranks = [[chunk] for chunk in pieces("w", weights(0, (2, 3)), 4)]
    write_component(storage, "actor", ranks, attempt=0)
    assert bytes(read(storage, Slice("w", (0, 0), (2, 3))).data) == weights(0, (2, 3)).tobytes()
    assert bytes(read(storage, Slice("w", (2, 0), (0, 3))).data) == b""
    assert len(manifest_of(storage)["w"].chunks) == 2


@st.composite
def cut(draw: st.DrawFn) -> tuple[np.ndarray, str, list[list[TensorChunk]], Slice]:
    """A tensor, its pieces dealt out to ranks (some twice, to two ranks), and a slice of it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    dtype, code = draw(st.sampled_from([(np.uint8, "U8"), (np.uint16, "BF16"), (np.float32, "F32"), (np.int64, "I64")]))
    whole = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    ranks: list[list[TensorChunk]] = [[] for _ in range(draw(st.integers(1, 3)))]
    bounds = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    for cell in product(*(pairwise(b) for b in bounds)):
        part = np.ascontiguousarray(whole[tuple(slice(*edge) for edge in cell)])
        chunk = TensorChunk(
            "w", code, shape, tuple(low for low, _ in cell), part.shape if shape else (), part.tobytes()
        )
        for rank in draw(st.lists(st.integers(0, len(ranks) - 1), min_size=1, max_size=2, unique=True)):
            ranks[rank].append(chunk)
    starts = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(draw(st.integers(0, size - start)) for size, start in zip(shape, starts, strict=True))
    return whole, code, ranks, Slice("w", starts, sizes)


@given(cut())
def test_any_ranks_write_and_any_slice_is_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[np.ndarray, str, list[list[TensorChunk]], Slice]
) -> None:
    whole, code, ranks, wanted = made
    storage = LocalStorage(str(tmp_path_factory.mktemp("run")))
    written = write_component(storage, "actor", ranks, attempt=0)
    found = read(storage, wanted)
    index = tuple(slice(start, start + size) for start, size in zip(wanted.offset, wanted.shape, strict=True))
    assert bytes(found.data) == np.ascontiguousarray(whole[index]).tobytes()
    assert (found.dtype, found.global_shape, found.offset, found.shape) == (code, whole.shape, *index_of(wanted))
    one = TensorChunk("w", code, whole.shape, (0,) * whole.ndim, whole.shape, whole.tobytes())
    assert written.digest == write_component(storage, "other", [[one]], attempt=1).digest


def index_of(wanted: Slice) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return wanted.offset, wanted.shape


@pytest.mark.parametrize(
    "change",
    [{"name": "v"}, {"dtype": "I32"}, {"data": bytes(96)}, {"shape": (24,), "global_shape": (24,), "offset": (0,)}],
)
def test_the_digest_sees_name_dtype_shape_and_every_byte(storage: LocalStorage, change: dict[str, object]) -> None:
    [whole] = pieces("w", weights(1), 1)
    first = write_component(storage, "a", [[whole]], attempt=0)
    assert write_component(storage, "b", [[replace(whole, **change)]], attempt=0).digest != first.digest  # type: ignore[arg-type]


# --- states that are not whole ---------------------------------------------------------------------


def test_c12_replicas_that_differ_between_ranks_are_named_and_not_saved(storage: LocalStorage) -> None:
    rng = TensorChunk("rng", "U8", (4,), (0,), (4,), b"same")
    ranks = [[rng], [rng], [replace(rng, data=b"else")]]
    with pytest.raises(DamagedCheckpoint, match=r"tensor rng: ranks 0 and 2 hold different bytes"):
        write_component(storage, "actor", ranks, attempt=0)
    assert list(storage.list()) == []


def test_c12_what_each_rank_holds_for_itself_comes_back_to_that_rank(storage: LocalStorage) -> None:
    states = [bytes([rank] * 5) for rank in range(4)]
    ranks = [[TensorChunk("rng", "U8", (4, 5), (rank, 0), (1, 5), s)] for rank, s in enumerate(states)]
    write_component(storage, "actor", ranks, attempt=0)
    assert [read(storage, Slice("rng", (rank, 0), (1, 5))).data for rank in range(4)] == states
    assert len({chunk.hash for chunk in manifest_of(storage)["rng"].chunks}) == 4


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda a, b: [[a]], "no stored piece holds"),
        (lambda a, b: [[a], [replace(b, offset=(2, 0))]], "no stored piece holds|overlap"),
        (lambda a, b: [[a, b, replace(b, offset=(2, 0))]], "overlap"),
        (lambda a, b: [[a], [replace(b, dtype="I32")]], "differ in dtype"),
        (lambda a, b: [[a], [replace(b, global_shape=(7, 4))]], "differ in dtype or global shape"),
        (lambda a, b: [[a], [replace(b, data=bytes(b.data)[:-1])]], "wrong number of bytes"),
    ],
)
def test_pieces_that_do_not_make_up_a_tensor_are_refused(storage: LocalStorage, broken: object, reason: str) -> None:
    assert callable(broken)
    with pytest.raises(DamagedCheckpoint, match=f"tensor w: .*({reason})"):
        write_component(storage, "actor", broken(*pieces("w", weights(0), 2)), attempt=0)
    assert list(storage.list()) == []


def test_reading_what_is_not_there_names_it(storage: LocalStorage) -> None:
    write_component(storage, "actor", [pieces("w", weights(0), 1)], attempt=0)
    with pytest.raises(DamagedCheckpoint, match="no tensor 'v'"):
        read(storage, Slice("v", (0,), (1,)))
    with pytest.raises(DamagedCheckpoint, match="tensor w"):
        read(storage, Slice("w", (0, 0), (7, 4)))
