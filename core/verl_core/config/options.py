"""The plugins that a config chooses, and the keys of its blocks that belong to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from ..errors import ConfigError, InputError
from ..registry import (
    ALERT_SINK,
    ALGORITHM,
    CHECKPOINTER,
    CLUSTER,
    METRIC_SINK,
    RECOVERY,
    REWARD,
    ROLLOUT_ENGINE,
    STORAGE,
    TRAIN_ENGINE,
    WRITER,
    Kind,
    Registry,
)
from .findings import where
from .schema import Config
from .shape import key_remedy, known_keys

Choice = tuple[Kind[..., object], str]  # a provider: its kind and name


@dataclass(frozen=True, slots=True)
class _Block:
    """A block whose extra keys go to the providers that it chooses."""

    name: str  # as written
    path: str  # of its options in the schema
    options: Mapping[str, object]
    choices: tuple[Choice, ...]


def options_of(
    registry: Registry, kind: Kind[..., object], name: str, options: Mapping[str, object]
) -> dict[str, object]:
    """Those of a block's options that this provider's record has: some blocks serve two providers."""
    return {key: value for key, value in options.items() if key in _fields(registry, kind, name)}


def check_options(config: Config, registry: Registry, places: Mapping[str, str] | None = None) -> list[InputError]:
    """Providers that no loaded plugin offers, keys that no chosen provider has, and values of a wrong type."""
    errors: list[InputError] = []
    for name in config.training.fault_tolerance.recovery:
        errors += _offered(registry, [(RECOVERY, name)])
    for sink in config.monitoring.sinks:
        if not _sinks(registry, sink):
            errors += _offered(registry, [(ALERT_SINK, sink)])
    for block in _blocks(config, registry):
        missing = _offered(registry, block.choices)
        errors += missing or _checked(registry, block, places or {})
    return errors


def _blocks(config: Config, registry: Registry) -> Iterator[_Block]:
    def block(name: str, options: Mapping[str, object], *choices: tuple[Kind[..., object], str | None]) -> _Block:
        named = ((kind, name or next(reversed(registry.names(kind)), "")) for kind, name in choices)
        return _Block(name, f"{name}.options", options, tuple(named))

    c, reward, training = config, config.model.reward, config.training
    yield block("algorithm", c.algorithm.options, (ALGORITHM, c.algorithm.name))
    yield block("model.reward", reward.options, (REWARD, reward.name))
    yield block("rollout", c.rollout.options, (ROLLOUT_ENGINE, c.rollout.name), (WRITER, c.rollout.writer))
    yield block("training", training.options, (TRAIN_ENGINE, training.name), (CHECKPOINTER, training.checkpointer))
    yield block("distributed", c.distributed.options, (CLUSTER, c.distributed.cluster))
    yield block("storage", c.storage.options, *((STORAGE, name) for name in registry.names(STORAGE)))
    for sink, options in c.monitoring.options.items():
        choices = _sinks(registry, sink) or ((ALERT_SINK, sink),)
        yield _Block(f"monitoring.{sink}", f"monitoring.options.{sink}", options, choices)
    for policy, options in training.fault_tolerance.options.items():
        path = f"training.fault_tolerance.options.{policy}"
        yield _Block(path, path, options, ((RECOVERY, policy),))


def _sinks(registry: Registry, name: str) -> tuple[Choice, ...]:
    return tuple((kind, name) for kind in (ALERT_SINK, METRIC_SINK) if name in registry.names(kind))


def _offered(registry: Registry, choices: Sequence[Choice]) -> list[InputError]:
    errors: list[InputError] = []
    for kind, name in choices:
        try:
            registry.get(kind, name)
        except InputError as error:
            errors.append(error)
    return errors


def _checked(registry: Registry, block: _Block, places: Mapping[str, str]) -> list[InputError]:
    if not isinstance(block.options, Mapping):
        return [ConfigError("a block of keys is expected", where=block.name, remedy="write its keys below it")]
    known = {key for kind, name in block.choices for key in _fields(registry, kind, name)}
    errors: list[InputError] = []
    for key in block.options:
        if key not in known:
            at = where(f"{block.path}.{key}", places, shown=f"{block.name}.{key}")
            remedy = key_remedy(key, known.union(known_keys(block.name)))
            errors.append(ConfigError("unknown key", where=at, remedy=remedy))
    for kind, name in block.choices:
        try:
            registry.check_options(kind, name, options_of(registry, kind, name, block.options))
        except InputError as error:
            errors.append(error)
    return errors


def _fields(registry: Registry, kind: Kind[..., object], name: str) -> list[str]:
    return [field.name for field in fields(registry.get(kind, name).config_class)]  # type: ignore[arg-type]
