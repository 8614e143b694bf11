"""Environment variables for ``${oc.env:…}``: the real ones, then those of a ``.env`` file."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from ..errors import ConfigError

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")
_UNSET = object()
_swap = threading.Lock()


def parse_dotenv(text: str, name: str) -> dict[str, str]:
    """``KEY=VALUE`` lines; quotes around a value are taken off, ``#`` begins a comment. Errors never show values."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ConfigError("not a KEY=VALUE line", where=f"{name}:{number}", remedy="correct it, or put # before it")
        key, value = match.groups()
        quoted = re.match(r"""^(["'])(.*?)\1\s*(?:#.*)?$""", value)
        values[key] = quoted.group(2) if quoted else re.sub(r"(?:^|\s+)#.*$", "", value)
    return values


def read_environment(folders: Iterable[Path], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The real environment over the ``.env`` files of ``folders``, earlier folders first."""
    layers: list[Mapping[str, str]] = [os.environ if environ is None else environ]
    for folder in folders:
        file = folder / ".env"
        if file.is_file():
            try:
                layers.append(parse_dotenv(file.read_text("utf-8"), str(file)))
            except (OSError, UnicodeDecodeError) as e:
                raise ConfigError("cannot be read", where=str(file), remedy=type(e).__name__) from None
    return {key: value for layer in reversed(layers) for key, value in layer.items()}


@dataclass(slots=True)
class Asked:
    """Which variables the resolver was asked for since the last ``clear``, and what it answered."""

    names: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)

    def clear(self) -> None:
        self.names.clear()
        self.values.clear()
        self.unset.clear()


@contextmanager
def env_resolver(environment: Mapping[str, str]) -> Iterator[Asked]:
    """``${oc.env:NAME}`` reads ``environment`` while inside, and tells which names were asked for.

    OmegaConf's resolvers are global: the original is back when the block ends.
    """
    asked = Asked()

    def env(name: str, default: object = _UNSET) -> str | None:
        asked.names.add(name)
        if name in environment:
            asked.values.add(environment[name])
            return environment[name]
        if default is _UNSET:
            asked.unset.add(name)
            raise KeyError(name)
        return None if default is None else str(default)

    with _swap:
        OmegaConf.register_resolver("oc.env", env, replace=True, annotation_validation="off")
        try:
            yield asked
        finally:
            OmegaConf.register_resolver("oc.env", oc.env, replace=True)
