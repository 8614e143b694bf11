"""From a committed checkpoint to a Hugging Face folder, without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..checkpoint.digest import policy_digest
from ..checkpoint.format import ITEM_BYTES, MANIFEST, Manifest, read_manifest
from ..checkpoint.summary import SUMMARY
from ..committed import unseal
from ..errors import DamagedCheckpoint
from ..protocols import CheckpointReader
from ..types import Slice, TensorSums
from .hf_folder import check_model, new_model_folder, write_model
from .sums import byte_sums
from .tensors import from_bytes

ACTOR = "actor"


@dataclass(frozen=True, slots=True)
class Exported:
    tensors: int
    bytes: int
    policy_digest: str  # of the reloaded folder


def export_model(reader: CheckpointReader, target: Path, known_digest: str = "") -> Exported:
    """Write the actor of a checkpoint to ``target``, a folder that is not there yet; whole or not at all.

    ``known_digest``: what the state log says of the step. Raises DamagedError when the checkpoint, or what
    ``from_pretrained`` loads from the folder, is another policy; InputError when the folder cannot be made.
    """
    manifest = read_manifest(reader.file(f"{ACTOR}/{MANIFEST}"))
    digest = _saved_digest(reader, known_digest)
    done: list[Exported] = []

    def fill(draft: Path) -> None:
        read = {name: _tensor(reader, manifest, name) for name in manifest}
        if (found := policy_digest(sums for sums, _ in read.values())) != digest:
            raise DamagedCheckpoint(f"its tensors are policy {found}, it says {digest}", where=f"step {reader.step}")
        tensors = {name: tensor for name, (_, tensor) in read.items()}
        found = check_model(draft, write_model(draft, _small_files(reader), tensors))
        if found != digest:
            raise DamagedCheckpoint(f"loaded again it is policy {found}, not {digest}", where=str(target))
        size = sum(path.stat().st_size for path in draft.iterdir())
        done.append(Exported(len(tensors), size, found))

    new_model_folder(target, fill)
    return done[0]


def _saved_digest(reader: CheckpointReader, known: str) -> str:
    saved = str(unseal(reader.file(SUMMARY)).get("policy_digest"))
    if known and saved != known:
        what = f"the checkpoint is policy {saved}, the state log says {known}"
        raise DamagedCheckpoint(what, where=f"step {reader.step}", remedy="export another step")
    return saved


def _tensor(reader: CheckpointReader, manifest: Manifest, name: str) -> tuple[TensorSums, torch.Tensor]:
    stored = manifest[name]
    chunk = reader.read(ACTOR, Slice(name, (0,) * len(stored.shape), stored.shape))
    sums = byte_sums(name, ITEM_BYTES[stored.dtype], chunk.data)
    return sums, from_bytes(chunk.data, stored.dtype, stored.shape)


def _small_files(reader: CheckpointReader) -> dict[str, bytes]:
    """Config and tokenizer, by name: what lies beside the weights and is no part of their format."""
    names = [str(path) for path in unseal(reader.file(SUMMARY))["files"]]
    small = [n for n in names if n.startswith(f"{ACTOR}/") and not n.endswith((".safetensors", f"/{MANIFEST}"))]
    return {name.removeprefix(f"{ACTOR}/"): reader.file(name) for name in small}
