"""Rewards that are models: their folder is checked and hashed before a start, without any model library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ..config.checks import bounded_check
from ..config.schema import RewardConfig
from ..data.hashes import FileHashes
from ..errors import ModelError
from ..registry import REWARD, Registry
from ..state.runtime import RewardSnapshot
from ..types import RewardSource

_HEADS = ("score", "classifier", "classification_head")  # as transformers' sequence classifiers name it
_LIGHT = 1 << 20  # bytes of a head that is kept
_DECIDE = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # weights, and what shapes scores beside them


@dataclass
class RewardModelOptions:
    """Base of the options of a reward that is a model; its builder gets the folder that was checked and hashed."""

    path: str = "???"  # absolute: a folder with config.json, safetensors weights and a tokenizer


def folder_of(registry: Registry, reward: RewardConfig) -> str:
    """The model folder of a reward, "" for one that is no model."""
    is_model = issubclass(registry.get(REWARD, reward.name).config_class, RewardModelOptions)
    return str(reward.options.get("path", "")) if is_model else ""


def reward_errors(registry: Registry, reward: RewardConfig, tokenizer_classes: Sequence[str]) -> Sequence[ModelError]:
    """All reasons against loading the reward's model. Safetensors only: no key allows a pickle here."""
    path = folder_of(registry, reward)
    if not path:
        return []
    if not Path(path).is_absolute():
        remedy = "give the absolute path of a folder; a start never downloads"
        return [ModelError("the path of the reward model is not absolute", where=path, remedy=remedy)]
    return bounded_check(path, None, tokenizer_classes)


def source_of(
    registry: Registry, reward: RewardConfig, tokenizer_classes: Sequence[str], hashes: FileHashes
) -> RewardSource:
    """What scores, with the digest of its content. Raises the first of ``reward_errors``."""
    for error in reward_errors(registry, reward, tokenizer_classes):
        raise error
    path = folder_of(registry, reward)
    return RewardSource(reward.name, path, digest_of(path, hashes) if path else "")


def digest_of(path: str, hashes: FileHashes) -> str:
    """Of all files that decide about scores, by name. Raises DataError for one that cannot be read."""
    files = sorted({file for pattern in _DECIDE for file in Path(path).glob(pattern)})
    lines = [f"{file.name} {hashed.sha256}\n" for file, hashed in zip(files, hashes.of_all(files), strict=True)]
    return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


def snapshot_of(source: RewardSource, scale: float, shift: float) -> RewardSnapshot | None:
    """A reward model in little, None for a reward that is no model. Raises ModelError."""
    if not source.path:
        return None
    folder = Path(source.path)
    try:
        config = folder / "tokenizer_config.json"
        shaping = config.read_bytes() if config.exists() else b""
        head = _head_of(sorted(folder.glob("*.safetensors")))
    except OSError as error:
        raise ModelError(error.strerror or str(error), where=source.path) from error
    return RewardSnapshot(source.name, source.path, source.digest, scale, shift, head, shaping)


def _head_of(files: Sequence[Path]) -> bytes:
    """The tensors behind the body, as one safetensors file; empty where there are none, or they are large."""
    header: dict[str, object] = {}
    body = b""
    for file in files:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            for name, entry in json.loads(stream.read(length)).items():
                if name.split(".")[0] not in _HEADS:
                    continue
                begin, end = entry["data_offsets"]
                if len(body) + end - begin > _LIGHT:
                    return b""
                stream.seek(8 + length + begin)
                header[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
                body += stream.read(end - begin)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body if header else b""


def described(source: RewardSource) -> str:
    """One line for people."""
    return f"{source.name} {source.path} ({source.digest[:19]}…)" if source.path else source.name or "(not on record)"
