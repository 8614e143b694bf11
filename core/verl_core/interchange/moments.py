"""AdamW's moments out of verl's ``optim_world_size_W_rank_R.pt``, where it is beyond doubt whose they are.

Torch numbers parameters by their order and stores no names. The order is that of the model's parameters, if there is
one group of them (or the groups name them); FSDP1 flattens parameters and keeps no record of it, so that its moments
belong to nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from ..errors import InputError
from .hf_folder import parameter_shapes
from .pickles import load_rank_file
from .placement import pieces_of, whole_tensor
from .warm_start import KINDS, MOMENTS, STEP


@dataclass(frozen=True, slots=True)
class Moments:
    """``tensors`` by the names of ``warm_start``, F32."""

    step: int
    parameters: int
    tensors: Mapping[str, torch.Tensor]


class _Unclear(Exception):
    """Why the moments cannot be told apart."""


def moments_of(folder: Path, world_size: int, hf_folder: Path) -> tuple[Moments | None, str]:
    """The moments, or None with the reason. Raises DamagedError when a file is damaged or ranks disagree."""
    files = [folder / f"optim_world_size_{world_size}_rank_{rank}.pt" for rank in range(world_size)]
    if lacking := [file.name for file in files if not file.is_file()]:
        return None, f"there is no {lacking[0]}"
    try:
        states = [load_rank_file(file) for file in files]
        return _named(states, parameter_shapes(hf_folder)), ""
    except (InputError, _Unclear) as error:
        return None, str(error)


def write_moments(folder: Path, moments: Moments) -> None:
    """Put them beside the weights, durable."""
    path = folder / MOMENTS
    path.parent.mkdir()
    save_file({**moments.tensors, STEP: torch.tensor(moments.step)}, path)
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _named(states: Sequence[Mapping[str, object]], shapes: Mapping[str, tuple[int, ...]]) -> Moments:
    names = _names(states[0], shapes)
    tensors: dict[str, torch.Tensor] = {}
    steps: set[int] = set()
    for number, name in names.items():
        entries = [_entry(state, number, name) for state in states]
        steps |= {int(entry[STEP]) for entry in entries}
        for kind in KINDS:
            pieces = [pieces_of(f"{kind}.{name}", entry[kind], rank) for rank, entry in enumerate(entries)]
            if pieces[0][0].global_shape != shapes[name]:
                raise _Unclear(f"moments of shape {pieces[0][0].global_shape} do not belong to {name} {shapes[name]}")
            tensors[f"{kind}.{name}"] = whole_tensor(f"{kind}.{name}", pieces).float()
    if len(steps) != 1:
        raise _Unclear(f"parameters have had {min(steps)} to {max(steps)} updates")
    return Moments(steps.pop(), len(names), tensors)


def _names(state: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> dict[int, str]:
    """Number in the optimizer → name in the model."""
    groups = cast("list[dict[str, Any]]", state.get("param_groups") or [])
    numbers = [number for group in groups for number in group["params"]]
    if groups and all(group.get("param_names") for group in groups):
        names = [str(name) for group in groups for name in group["param_names"]]
    elif len(groups) == 1:
        names = list(shapes)
    else:
        raise _Unclear(f"it has {len(groups)} groups of parameters, without names")
    if len(numbers) != len(names) or set(names) != set(shapes):
        raise _Unclear(
            f"it numbers {len(numbers)} tensors, the model has {len(shapes)} parameters (FSDP1 flattens them)"
        )
    return dict(zip(numbers, names, strict=True))


def _entry(state: Mapping[str, object], number: int, name: str) -> Mapping[str, Any]:
    entry = cast("dict[int, dict[str, Any]]", state.get("state") or {}).get(number, {})
    if entry.keys() != {STEP, *KINDS}:
        kept = ", ".join(sorted(entry)) or "nothing"
        raise _Unclear(f"for {name} it keeps {kept}, not the two moments of AdamW")
    return entry
