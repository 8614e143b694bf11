"""verl's FSDP checkpoints, ``global_step_N/actor``, as Hugging Face folders.

What lies there, by verl's documents: ``model_world_size_W_rank_R.pt``, ``optim_…`` and ``extra_state_…`` of each rank
R, ``fsdp_config.json``, and ``huggingface/`` with config, generation config and tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint.digest import policy_digest
from ..errors import DamagedError, InputError
from .hf_folder import CONFIG, check_model, new_model_folder, write_model
from .moments import Moments, moments_of, write_moments
from .pickles import load_rank_file
from .placement import pieces_of, whole_tensor

_MODEL = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_SMALL = (".json", ".jinja", ".txt", ".model")
_WANTED = "give global_step_N/actor of an FSDP run of verl"


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint that is complete by its names."""

    folder: Path
    world_size: int
    hf_files: Mapping[str, bytes]  # config and tokenizer


@dataclass(frozen=True, slots=True)
class Imported:
    tensors: int
    world_size: int
    policy_digest: str
    moments: Moments | None  # what was taken over of the optimizer
    no_moments: str  # why not


def find_source(path: Path) -> Source:
    """Raises InputError for anything but an actor of an FSDP run, DamagedError when rank files are missing."""
    folder = path / "actor" if (path / "actor").is_dir() else path
    if not folder.is_dir():
        raise InputError("no such folder", where=str(path), remedy=_WANTED)
    ranks = {(int(m[1]), int(m[2])) for file in folder.iterdir() if (m := _MODEL.fullmatch(file.name))}
    if not ranks:
        what, remedy = _other(folder)
        raise InputError(what, where=str(folder), remedy=remedy)
    sizes = sorted({size for size, _ in ranks})
    if len(sizes) > 1:
        what = f"holds files of runs with {' and '.join(map(str, sizes))} ranks"
        raise InputError(what, where=str(folder), remedy="move those that do not belong there away")
    world_size = sizes[0]
    missing = [str(rank) for rank in range(world_size) if (world_size, rank) not in ranks]
    if missing:
        what = f"model files of {len(missing)} of {world_size} ranks are missing: {', '.join(missing[:8])}"
        raise DamagedError(what, where=str(folder), remedy="copy them from all nodes, or import another step")
    if (folder / "lora_adapter").exists():
        raise InputError("holds a LoRA adapter", where=str(folder), remedy="merge it with verl's model merger first")
    _check_config(folder, world_size)
    return Source(folder, world_size, _hf_files(folder))


def import_model(path: Path, target: Path, *, optimizer: bool = True) -> Imported:
    """Write the weights to ``target``, a folder that is not there yet; with ``optimizer`` AdamW's moments, too, where
    it is beyond doubt to which parameters they belong.

    Every bit is kept, the type of the weights as well. Raises InputError, ModelError, or DamagedError when parts are
    missing or ``from_pretrained`` does not give back what was written.
    """
    source = find_source(path)
    tensors = _whole_state(source)
    done: list[Imported] = []

    def fill(draft: Path) -> None:
        sums = write_model(draft, source.hf_files, tensors)
        digest = check_model(draft, sums)
        if digest != policy_digest(sums.values()):
            raise DamagedError(f"loaded again it is policy {digest}", where=str(target))
        moments, reason = moments_of(source.folder, source.world_size, draft) if optimizer else (None, "not asked for")
        if moments is not None:
            write_moments(draft, moments)
        done.append(Imported(len(sums), source.world_size, digest, moments, reason))

    new_model_folder(target, fill)
    return done[0]


def _whole_state(source: Source) -> dict[str, torch.Tensor]:
    states = [
        load_rank_file(source.folder / f"model_world_size_{source.world_size}_rank_{rank}.pt")
        for rank in range(source.world_size)
    ]
    for rank, state in enumerate(states):
        if differing := sorted(state.keys() ^ states[0].keys()):
            what = f"ranks 0 and {rank} do not hold the same tensors, first {differing[0]}"
            raise DamagedError(what, where=str(source.folder), remedy="is the folder of one save?")
    return {
        name: whole_tensor(name, [pieces_of(name, state[name], rank) for rank, state in enumerate(states)])
        for name in states[0]
    }


def _hf_files(folder: Path) -> dict[str, bytes]:
    """Config and tokenizer: in ``huggingface/``, or beside the actor as older versions have it."""
    for place in (folder / "huggingface", folder.parent / f"{folder.name}_huggingface"):
        if (place / CONFIG).is_file():
            found = sorted(p for p in place.iterdir() if p.suffix in _SMALL and not p.name.endswith(".index.json"))
            return {p.name: p.read_bytes() for p in found}
    remedy = "put config.json and the tokenizer of the model that it began with there"
    raise InputError("there is no config.json", where=str(folder / "huggingface"), remedy=remedy)


def _check_config(folder: Path, world_size: int) -> None:
    file = folder / "fsdp_config.json"
    if not file.is_file():
        return  # older versions wrote none
    try:
        said = json.loads(file.read_text("utf-8")).get("world_size")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(
            "is no JSON object", where=str(file), remedy="remove it, if the rank files are right"
        ) from error
    if said != world_size:
        what = f"says {said} ranks, the files are of {world_size}"
        raise DamagedError(what, where=str(file), remedy="is the folder of one save?")


def _other(folder: Path) -> tuple[str, str]:
    """What the folder is instead, and what to do."""
    if (folder / CONFIG).is_file():
        return "this is a Hugging Face folder", f"a run starts from it as it is: --set model.actor.path={folder}"
    if (folder / "dist_ckpt").exists():
        return "this is a checkpoint of Megatron", "convert it with verl's model merger, and start from its result"
    steps = sorted(p.name for p in folder.glob("global_step*") if p.is_dir())
    if steps:
        return "these are the checkpoints of a whole run", f"name one: {folder}/{steps[-1]}/actor"
    return "there is no model_world_size_W_rank_R.pt", _WANTED
