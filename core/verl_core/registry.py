"""Named providers, one table for all kinds.

A ``Kind`` is a typed token: ``registry.build(STORAGE, "local", options, context)`` is a ``Storage``, and
``registry.build(WRITER, "atomic", options, context, storage)`` a ``RolloutWriter``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from .errors import ConfigError, PluginError
from .protocols import (
    AlertSink,
    Algorithm,
    Checkpointer,
    Cluster,
    HealthCheck,
    MetricSink,
    RecoveryPolicy,
    Resharder,
    Reward,
    RolloutEngine,
    RolloutWriter,
    Storage,
    TrainEngine,
)
from .types import BuildContext, Prompt

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Kind(Generic[P, T_co]):
    """What is built (``T_co``), and from what beside options and context (``P``)."""

    name: str
    hook: str  # that registers it
    block: str  # of the config, for errors


STORAGE: Kind[[], Storage] = Kind("storage", "register_storages", "storage")
WRITER: Kind[[Storage], RolloutWriter] = Kind("rollout_writer", "register_rollout_writers", "rollout.writer")
CHECKPOINTER: Kind[[Storage], Checkpointer] = Kind("checkpointer", "register_checkpointers", "training.checkpointer")
RESHARDER: Kind[[], Resharder] = Kind("resharder", "register_resharders", "training")
TRAIN_ENGINE: Kind[[], TrainEngine] = Kind("train_engine", "register_train_engines", "training")
ROLLOUT_ENGINE: Kind[[], RolloutEngine] = Kind("rollout_engine", "register_rollout_engines", "rollout")
CLUSTER: Kind[[], Cluster] = Kind("cluster", "register_clusters", "distributed")
ALGORITHM: Kind[[], Algorithm] = Kind("algorithm", "register_algorithms", "algorithm")
REWARD: Kind[[], Reward] = Kind("reward", "register_rewards", "model.reward")
RECOVERY: Kind[[], RecoveryPolicy] = Kind("recovery", "register_recovery_policies", "training.fault_tolerance.recovery")
HEALTH_CHECK: Kind[[], HealthCheck] = Kind("health_check", "register_health_checks", "monitoring")
ALERT_SINK: Kind[[], AlertSink] = Kind("alert_sink", "register_alert_sinks", "monitoring")
METRIC_SINK: Kind[[], MetricSink] = Kind("metric_sink", "register_metric_sinks", "monitoring")

KINDS: tuple[Kind[..., object], ...] = (
    STORAGE, WRITER, CHECKPOINTER, RESHARDER, TRAIN_ENGINE, ROLLOUT_ENGINE, CLUSTER, ALGORITHM, REWARD, RECOVERY,
    HEALTH_CHECK, ALERT_SINK, METRIC_SINK,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Provider(Generic[P, T_co]):
    """One registered factory; ``build`` takes the user's options, checked against ``config_class``."""

    kind: str
    name: str
    plugin: str
    distribution: str
    config_class: type[object]
    build: Callable[Concatenate[Mapping[str, object], BuildContext, P], T_co]

    @property
    def keys(self) -> tuple[str, ...]:
        """The options that the user may set."""
        return _keys(self.config_class)


class Registry:
    """All providers that the loaded plugins offer, in the order of loading."""

    def __init__(self) -> None:
        self._providers: dict[tuple[str, str], Provider[..., object]] = {}

    def register(
        self,
        kind: Kind[P, T],
        name: str,
        config_class: type[C],
        build: Callable[Concatenate[C, BuildContext, P], T],
        *,
        plugin: str = "",
        distribution: str = "",
    ) -> None:
        """Add a provider. Raises ``PluginError`` when the name is taken, or ``config_class`` no usable dataclass."""
        taken = self._providers.get((kind.name, name))
        if taken is not None:
            raise PluginError(
                f"{kind.name} '{name}' is registered twice: by plugin '{taken.plugin}' ({taken.distribution}) "
                f"and by plugin '{plugin}' ({distribution})",
                remedy="load only one of the two with --plugins",
            )
        try:
            OmegaConf.structured(config_class)
        except OmegaConfBaseException as error:
            raise PluginError(
                f"{kind.name} '{name}' has no usable config class: {_first_line(error)}",
                where=f"plugin '{plugin}' ({distribution})",
                remedy="use a dataclass with fields of plain types",
            ) from error

        def build_from(options: Mapping[str, object], context: BuildContext, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return build(_record(kind, name, config_class, options), context, *args, **kwargs)

        self._providers[kind.name, name] = Provider(kind.name, name, plugin, distribution, config_class, build_from)

    def get(self, kind: Kind[P, T], name: str) -> Provider[P, T]:
        """The provider of this name; a reward ``package.module:function`` needs no plugin. Raises ``PluginError``."""
        found = self._providers.get((kind.name, name))
        if found is None and kind.name == REWARD.name and ":" in name:
            found = _function_provider(name)
        if found is None:
            offered = self.names(kind)
            raise PluginError(
                f"no loaded plugin offers {kind.name} '{name}'{did_you_mean(name, offered)}",
                where=kind.block,
                remedy=f"offered: {', '.join(offered) or 'none'}; load the plugin that offers it with --plugins NAME",
            )
        return cast("Provider[P, T]", found)  # the key holds the kind's name, so the kind's types hold too

    def names(self, kind: Kind[..., object]) -> list[str]:
        return [provider.name for provider in self.providers() if provider.kind == kind.name]

    def only(self, kind: Kind[..., object]) -> str:
        """The one name of a kind, for a config that chooses none. Raises ``PluginError`` for none or several."""
        names = self.names(kind)
        if len(names) != 1:
            raise PluginError(
                f"several plugins offer a {kind.name}: {', '.join(names)}" if names else f"no {kind.name} is loaded",
                where=kind.block,
                remedy="choose one by its name" if names else "load a plugin that offers one with --plugins NAME",
            )
        return names[0]

    def providers(self) -> tuple[Provider[..., object], ...]:
        return tuple(self._providers.values())

    def build(
        self,
        kind: Kind[P, T],
        name: str,
        options: Mapping[str, object],
        context: BuildContext,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Check ``options`` and build. Raises ``PluginError``, ``ConfigError``, and what the builder raises."""
        return self.get(kind, name).build(options, context, *args, **kwargs)

    def check_options(self, kind: Kind[..., object], name: str, options: Mapping[str, object]) -> None:
        """Raise the error that ``build`` would raise for the name or its options, and build nothing."""
        _record(kind, name, self.get(kind, name).config_class, options)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean '{near[0]}'?" if near else ""


def _record(kind: Kind[..., object], name: str, config_class: type[C], options: Mapping[str, object]) -> C:
    """The plugin's config record, filled from the user's options."""
    owner = f"{kind.name} '{name}'"
    try:
        blank = OmegaConf.structured(config_class, flags={"readonly": False})  # frozen dataclasses are read-only
        record = OmegaConf.to_object(OmegaConf.merge(blank, dict(options)))
    except ConfigKeyError as error:
        known = _keys(error.object_type)
        raise ConfigError(
            f"unknown key '{error.full_key}' for {owner}{did_you_mean(str(error.key), known)}",
            where=kind.block,
            remedy=f"known keys: {', '.join(known) or 'none'}",
        ) from error
    except (OmegaConfBaseException, ValueError) as error:
        key = error.full_key if isinstance(error, OmegaConfBaseException) else None
        place = f"key '{key}' of {owner}" if key else owner
        raise ConfigError(f"{place}: {_first_line(error)}", where=kind.block, remedy="correct the value") from error
    assert isinstance(record, config_class)  # for the type: to_object makes what structured was given
    return record


def _keys(config_class: object) -> tuple[str, ...]:
    return tuple(field.name for field in fields(config_class)) if is_dataclass(config_class) else ()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- rewards that are plain functions --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A provider without options."""


@dataclass(frozen=True, slots=True)
class FunctionReward:
    """``function(response, answer) -> float`` of the user's own, called once a sample."""

    name: str
    function: Callable[[str, str], float]

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        return [self._one(response, prompt.answer) for prompt, response in zip(prompts, responses, strict=True)]

    def _one(self, response: str, answer: str) -> float:
        value = self.function(response, answer)
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise PluginError(f"reward '{self.name}' returned {value!r}", remedy="return a float") from error


def _function_provider(path: str) -> Provider[..., object]:
    reward = FunctionReward(path, _import_function(path))

    def build(options: Mapping[str, object], context: BuildContext) -> Reward:
        _record(REWARD, path, NoOptions, options)
        return reward

    module = path.partition(":")[0]
    return Provider(REWARD.name, path, module, "", NoOptions, build)


def _import_function(path: str) -> Callable[[str, str], float]:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the border to the user's module, which may raise anything
        raise PluginError(
            f"reward '{path}' cannot be imported: {type(error).__name__}: {_first_line(error)}",
            where=REWARD.block,
            remedy="write package.module:function, and install the package or put its folder on PYTHONPATH",
        ) from error
    function: Callable[[str, str], float] | None = getattr(module, attribute, None)
    if not callable(function):
        near = did_you_mean(attribute, vars(module))
        raise PluginError(
            f"module '{module_name}' has no function '{attribute}'{near}",
            where=REWARD.block,
            remedy="write package.module:function",
        )
    try:
        inspect.signature(function).bind("response", "answer")
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"reward '{path}' cannot be called with (response, answer): {_first_line(error)}",
            where=REWARD.block,
            remedy="define it as: def function(response: str, answer: str) -> float",
        ) from error
    return function
