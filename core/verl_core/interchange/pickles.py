"""Rank files of other frameworks, which are pickles: read without running anything that they name.

Torch's restricted unpickler (``weights_only=True``) builds nothing but tensors and what an allow list names. The list
here stands in for the real classes of sharded tensors: inert records that keep what they are given. So a file needs
no process group, no device and no particular version of torch, and can do nothing.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251 - what the restricted unpickler raises
from typing import Any, NamedTuple

import torch

from ..errors import DamagedError, InputError

_lock = threading.Lock()  # the allow list is torch's, and global


class Record:
    """What was stored of an object of another class, which ``kind`` names."""

    __slots__ = ("fields", "values")
    kind = ""
    fields: dict[str, Any]  # attributes; what they hold is for the reader to check
    values: tuple[object, ...]  # what it was made from, or a state that names no attributes

    def __new__(cls, *values: object) -> Record:
        self = super().__new__(cls)
        self.fields, self.values = {}, values
        return self

    def __setstate__(self, state: object) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        known = [part for part in parts if isinstance(part, dict)]
        if len(known) == len([part for part in parts if part is not None]):
            for part in known:
                self.fields.update(part)
        else:
            self.values = parts


class ShardedValue(torch.Tensor):
    """A ``DTensor`` or ``ShardedTensor``: a shape and a type without memory, and what else was stored."""

    kind = ""
    stored: Any = ()  # of a ShardedTensor: its state

    @classmethod
    def __torch_dispatch__(cls, func: object, *arguments: object) -> object:
        raise InputError("a sharded tensor was computed with", where=str(func))


class _StatefulValue(ShardedValue):
    def __setstate__(self, state: object) -> None:
        self.stored = state


class TensorMeta(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class ShardOrderEntry(NamedTuple):
    tensor_dim: int
    mesh_dims: tuple[int, ...]


_TENSOR, _OLD = "torch.distributed.tensor", "torch.distributed._tensor"  # before and since torch 2.5
_SHARDED = "torch.distributed._shard"
_RECORDS = {
    "torch.distributed.device_mesh.DeviceMesh": "DeviceMesh",
    "torch.distributed._mesh_layout._MeshLayout": "MeshLayout",
    "torch.distributed._mesh_layout._FlatLayout": "FlatLayout",
    f"{_TENSOR}._dtensor_spec.DTensorSpec": "DTensorSpec",
    f"{_OLD}.placement_types.DTensorSpec": "DTensorSpec",
    f"{_OLD}._dtensor_spec.DTensorSpec": "DTensorSpec",
    **{f"{place}.placement_types.{name}": name for place in (_TENSOR, _OLD) for name in ("Shard", "Replicate")},
    **{f"{place}.placement_types.{name}": name for place in (_TENSOR, _OLD) for name in ("Partial", "_StridedShard")},
    f"{_SHARDED}.metadata.ShardMetadata": "ShardMetadata",
    f"{_SHARDED}.sharded_tensor.metadata.ShardedTensorMetadata": "ShardedTensorMetadata",
    f"{_SHARDED}.sharded_tensor.metadata.TensorProperties": "TensorProperties",
    f"{_SHARDED}.sharded_tensor.metadata.MEM_FORMAT_ENCODING": "MEM_FORMAT_ENCODING",
    f"{_SHARDED}.sharded_tensor.shard.Shard": "LocalShard",
    f"{_SHARDED}.sharding_spec.chunk_sharding_spec.ChunkShardingSpec": "ChunkShardingSpec",
    f"{_SHARDED}.sharding_spec.api.EnumerableShardingSpec": "EnumerableShardingSpec",
    "torch.distributed.remote_device._remote_device": "remote_device",
}
_TUPLES = {
    f"{_TENSOR}._dtensor_spec.TensorMeta": TensorMeta,
    f"{_OLD}.placement_types.TensorMeta": TensorMeta,
    f"{_OLD}._dtensor_spec.TensorMeta": TensorMeta,
    f"{_TENSOR}._dtensor_spec.ShardOrderEntry": ShardOrderEntry,
}
_VALUES: dict[str, type[ShardedValue]] = {
    f"{_TENSOR}.DTensor": ShardedValue,
    f"{_TENSOR}._api.DTensor": ShardedValue,
    f"{_OLD}.api.DTensor": ShardedValue,
    f"{_SHARDED}.sharded_tensor.api.ShardedTensor": _StatefulValue,
}


class _GroupState(Record):
    kind = "ProcessGroupState"


def _group_state(owner: object, name: str) -> type[Record]:
    """In the place of ``getattr``, by which pickles name a nested class: of a sharded tensor, this one and no other."""
    if not (isinstance(owner, type) and issubclass(owner, ShardedValue) and name == "ProcessGroupState"):
        raise UnpicklingError(f"getattr of {name!r}")
    return _GroupState


def _allowed() -> list[Callable[..., object] | tuple[Callable[..., object], str]]:
    """Full names in a pickle, each with what stands in for it."""
    records = {name: type(kind, (Record,), {"kind": kind}) for name, kind in _RECORDS.items()}
    values = {name: type(cls.__name__, (cls,), {"kind": name.rpartition(".")[2]}) for name, cls in _VALUES.items()}
    stands: dict[str, Callable[..., object]] = {**records, **values, **_TUPLES, "builtins.getattr": _group_state}
    return [*((stand, name) for name, stand in stands.items()), _GroupState]


@contextmanager
def _only(names: list[Callable[..., object] | tuple[Callable[..., object], str]]) -> Iterator[None]:
    """The allow list is this and nothing else, whatever other libraries have put there; afterwards it is as it was."""
    with _lock:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(names)
        try:
            yield
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def load_rank_file(path: Path) -> Mapping[str, object]:
    """The mapping in a rank file, on the CPU: tensors, ``ShardedValue``s, ``Record``s and plain values.

    Raises DamagedError when a checksum in the file is wrong, InputError for a file that is no such pickle, is cut
    short, or names anything that is not on the list.
    """
    _check_sums(path)
    remedy = "only tensors and their placement are read from a pickle; is it a model or optimizer file of verl?"
    try:
        with _only(_allowed()):
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # noqa: TID251 - restricted
    except UnpicklingError as error:
        raise InputError(f"refused: {_reason(str(error))}", where=str(path), remedy=remedy) from error
    except (RuntimeError, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"cannot be read: {first}", where=str(path), remedy="copy the file again") from error
    if not isinstance(found, dict | OrderedDict):
        raise InputError(f"holds a {type(found).__name__}, not a state", where=str(path), remedy=remedy)
    return {str(key): value for key, value in found.items()}


def _check_sums(path: Path) -> None:
    """Every CRC-32 of the archive: mapped into memory, torch looks at none."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
        what = f"cannot be read: {str(error) or type(error).__name__}"
        raise InputError(what, where=str(path), remedy="copy the file again; older formats are not read") from error
    if damaged is not None:
        raise DamagedError(f"{damaged} in it differs from its checksum", where=str(path), remedy="copy the file again")


def _reason(message: str) -> str:
    """What the restricted unpickler refused, without its advice to allow it."""
    for line in io.StringIO(message):
        if "Unsupported global" in line or "Trying to" in line or "Can only" in line or "getattr of" in line:
            return line.strip().split(" was not an allowed")[0].removeprefix("WeightsUnpickler error: ")
    return (message.splitlines() or ["not a pickle of tensors"])[0]
