"""Rewards that are models: their folder is checked and hashed before a start, without any model library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from ..config.checks import bounded_check
from ..config.schema import RewardConfig
from ..data.hashes import FileHashes
from ..errors import ModelError
from ..registry import REWARD, Registry
from ..types import RewardSource

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


def described(source: RewardSource) -> str:
    """One line for people."""
    return f"{source.name} {source.path} ({source.digest[:19]}…)" if source.path else source.name
