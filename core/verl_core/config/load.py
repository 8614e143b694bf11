"""Files, fragments and overrides in, one typed config out. All that is wrong is reported together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, ValidationError

from .. import masking
from ..errors import ConfigError
from . import paths, secrets
from .compose import Layer, layers_of, override_layer, parse_yaml
from .environment import env_resolver, read_environment
from .findings import raise_all, where
from .resolve import Look
from .resume import changed_keys
from .schema import Config
from .shape import block_type, expected, hints, shape


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config with what is needed to show it: where each key came from, and which values are secret."""

    config: Config = field(repr=False)
    source: Mapping[str, object]  # complete, interpolations as written
    secrets: frozenset[secrets.Path]
    places: Mapping[str, str]  # dotted key → "file:line", or "--set"
    folders: tuple[Path, ...]  # where a .env file was looked for
    secret_texts: frozenset[str] = field(repr=False)

    def config_text(self) -> str:
        """YAML for the run folder: interpolations verbatim, so that a later start reads them again; secrets that
        are written in the clear are masked."""
        kept = secrets.masked(dict(self.source), self.secrets, secrets.kept_reference)
        return OmegaConf.to_yaml(OmegaConf.create(kept))

    def shown_text(self) -> str:
        """YAML for people: resolved, secrets masked."""
        shown = secrets.masked(asdict(self.config), self.secrets)
        return self.redact(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=10_000))

    def redact(self, text: str) -> str:
        """The text with every secret value of this config masked, for messages of others."""
        for secret in sorted(self.secret_texts, key=len, reverse=True):
            text = text.replace(secret, secrets.MASK) if len(secret) >= 4 else text  # shorter ones are in any text
        return text

    def changed_since(self, saved: str) -> list[str]:
        """Keys that may not differ between two starts of a run, and do (see ``changed_keys``); ``saved`` is the
        ``config_text`` of an earlier start. Secrets are not compared, and never shown. Raises ``ConfigError``."""
        old = read_saved(saved, folders=self.folders)
        hidden = self.secrets | old.secrets
        return changed_keys(secrets.masked(old.config, hidden), secrets.masked(self.config, hidden))


def load_config(
    file: str | None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, object] | Config | None = None,
    search: Sequence[Path] = (),
) -> Config:
    """The config alone; see ``read_config``."""
    return read_config(file, overrides, base=base, search=search).config


def read_config(
    file: str | None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, object] | Config | None = None,
    search: Sequence[Path] = (),
) -> LoadedConfig:
    """Compose, lowest first: the schema's defaults, ``base``, the file with its fragments, ``overrides`` (``a.b=c``).

    ``search`` are more folders to find fragments in. Relative paths in ``base`` and ``overrides`` are made absolute
    from the working folder. Raises ``ConfigError`` for one finding, ``PreflightError`` for several; messages never
    show a value that came from the environment.
    """
    layers: list[Layer] = []
    if base is not None:
        layers.append(Layer(asdict(base) if isinstance(base, Config) else dict(base), {}, typed=True))
    if file is not None:
        layers += layers_of(Path(file), search)
    layers += [override_layer(text) for text in overrides]
    return _typed(layers, (Path(file).absolute().parent, Path.cwd()) if file else (Path.cwd(),))


def read_saved(text: str, name: str = "config.yaml", folders: tuple[Path, ...] | None = None) -> LoadedConfig:
    """The ``config_text`` of an earlier start. Secrets that were in the clear are masks in it. Raises like above."""
    return _typed([Layer(*parse_yaml(text, name))], folders or (Path.cwd(),), saved=True)


def _typed(layers: Sequence[Layer], folders: tuple[Path, ...], saved: bool = False) -> LoadedConfig:
    """Merge the layers into the schema and resolve them. Masks are errors, except in a ``saved`` config."""
    trees: list[dict[str, object]] = []
    places: dict[str, str] = {}
    errors: list[ConfigError] = []
    for layer in layers:
        shaped = shape(layer.tree, layer.places)
        if layer.typed:
            paths.make_absolute(shaped.tree, Path.cwd())
        trees.append(shaped.tree)
        places.update(shaped.places)
        errors += shaped.errors
    raise_all(errors)

    typed = OmegaConf.structured(Config)
    merged = OmegaConf.to_container(OmegaConf.merge({}, *trees))
    raise_all(list(_fill(typed, cast("dict[str, object]", merged), Config, "", places)))
    environment = read_environment(folders)
    masking.learn_environment(environment)
    with env_resolver(environment) as asked:
        look = Look(asked, places, saved)
        look.at(typed)
        masking.learn(look.secret_texts)
        raise_all(look.errors)
        config = cast(Config, OmegaConf.to_object(typed))
    paths.expand_home(config)
    source = cast("dict[str, object]", OmegaConf.to_container(typed))
    return LoadedConfig(config, source, frozenset(look.secrets), places, folders, frozenset(look.secret_texts))


def _fill(
    node: DictConfig, tree: Mapping[str, object], record: type, prefix: str, places: Mapping[str, str]
) -> Iterator[ConfigError]:
    """Put the values of ``tree`` into the typed node; yields those of a wrong type."""
    for key, value in tree.items():
        hint, path = hints(record)[key], f"{prefix}{key}"
        if (inner := block_type(hint)) is not None:
            yield from _fill(node[key], cast("dict[str, object]", value), inner, f"{path}.", places)
            continue
        if isinstance(value, str) and hint == list[str] and value != "???" and not _reference(value):
            value = [value]
        try:
            if isinstance(value, list):  # replaced, not merged; its items may be records
                node.merge_with({key: value})
            else:
                OmegaConf.update(node, key, value, merge=False)
        except (ValidationError, ConfigKeyError):
            shown = secrets.MASK if secrets.secret_leaf((key,), value, ()) else repr(value)
            yield ConfigError(f"{shown} is not {expected(hint)}", where=where(path, places), remedy="correct the value")


def _reference(value: str) -> bool:
    """Whether the text stands for another key's value, which may be a list."""
    return value.startswith("${") and not value.startswith("${oc.")
