"""Moments of AdamW beside a model's weights: an engine whose run begins with the folder begins with them.

``optimizer/moments.safetensors`` holds ``exp_avg.NAME`` and ``exp_avg_sq.NAME`` in F32 and ``step``, the number of
updates behind them, which Adam's bias correction counts. It has nothing to do with the steps of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open

from ..errors import ModelError
from ..types import Slice, TensorChunk
from .tensors import dtype_name, raw_bytes

MOMENTS = "optimizer/moments.safetensors"  # in a folder of its own: loaders of weights take every file beside them
KINDS = ("exp_avg", "exp_avg_sq")
STEP, MASTER = "step", "master."
_INDEX, _WEIGHTS = "model.safetensors.index.json", "model.safetensors"


def moments_beside(model_path: str) -> Callable[[Slice], TensorChunk] | None:
    """What reads an engine's pieces of ``optimizer`` (see ``TrainEngine.load``), None when the folder has no moments.

    ``master.NAME``, the single-precision copy of a narrower parameter, is read from the weights. The reader raises
    ModelError for a tensor that is not there.
    """
    folder = Path(model_path)
    if not (folder / MOMENTS).is_file():
        return None
    return lambda piece: _read(folder, piece)


def _read(folder: Path, piece: Slice) -> TensorChunk:
    master = piece.name.startswith(MASTER)
    name = piece.name.removeprefix(MASTER)
    path = folder / (_weights_of(folder, name) if master else MOMENTS)
    with safe_open(path, framework="pt") as file:
        if name not in file.keys():  # noqa: SIM118 - it is no mapping
            raise ModelError(f"there is no tensor {name}", where=str(path), remedy="import the checkpoint again")
        stored = file.get_slice(name)
        shape = tuple(stored.get_shape())
        box = tuple(slice(start, start + size) for start, size in zip(piece.offset, piece.shape, strict=True))
        tensor = stored[box] if box else file.get_tensor(name)
    if master:
        tensor = tensor.float()
    data = bytes(raw_bytes(tensor))
    return TensorChunk(piece.name, dtype_name(name, tensor), shape, piece.offset, tuple(tensor.shape), data)


def _weights_of(folder: Path, name: str) -> str:
    index = folder / _INDEX
    if not index.is_file():
        return _WEIGHTS
    return str(json.loads(index.read_text("utf-8"))["weight_map"].get(name, _WEIGHTS))
