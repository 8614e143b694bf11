"""Finding and loading plugins: exactly those that are named, plus ``core``, plus defaults for the kinds left open.

A plugin is an entry point of the group ``verl_core``. They are imported one at a time, so that a package that one of
them lacks is the trouble of that one alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib import metadata

import pluggy

from . import hookspecs
from .errors import PluginError, VerlError
from .hookspecs import PROJECT
from .observers import HOOKS, Observers
from .registry import (
    ALERT_SINK,
    CLUSTER,
    KINDS,
    RECOVERY,
    ROLLOUT_ENGINE,
    STORAGE,
    TRAIN_ENGINE,
    Kind,
    Registry,
    did_you_mean,
)

CORE = "core"
DISTRIBUTION = "verl-core"
DEFAULTS: dict[Kind[..., object], tuple[str, ...]] = {
    STORAGE: ("local",),
    TRAIN_ENGINE: ("fsdp",),
    ROLLOUT_ENGINE: ("hf",),
    CLUSTER: ("inline",),
    RECOVERY: ("retry", "rebuild"),  # in the order in which they are asked
    ALERT_SINK: ("log",),
}
_KIND_OF_HOOK = {kind.hook: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """An entry point, not imported."""

    name: str
    distribution: str
    version: str
    module: str
    default: bool  # loaded where nothing named takes its place

    def __str__(self) -> str:
        return f"plugin '{self.name}' ({self.distribution} {self.version}, {self.module})"


@dataclass(frozen=True, slots=True)
class Loaded:
    registry: Registry
    observers: Observers
    plugins: tuple[PluginInfo, ...]  # in the order of loading


def discover() -> list[PluginInfo]:
    """All installed plugins by name; imports none of them."""
    found = []
    for entry in metadata.entry_points(group=PROJECT):
        dist, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
        default = entry.name == CORE or any(entry.name in names for names in DEFAULTS.values())
        found.append(PluginInfo(entry.name, dist, version, entry.value, default))
    return sorted(found, key=lambda info: (info.name, info.distribution))


def split_names(names: Iterable[str]) -> list[str]:
    """``["a,b", "c"]`` → ``["a", "b", "c"]``, each once, in order."""
    parts = (part.strip() for name in names for part in name.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def load(names: Iterable[str], defaults: bool = True) -> Loaded:
    """Import ``core`` and the named plugins, then (with ``defaults``) those of each kind that is still open.

    Raises ``PluginError`` for a plugin that is unknown, broken or doubled, or that uses an unknown hook.
    """
    installed = discover()
    loader = _Loader()
    for name in dict.fromkeys((CORE, *split_names(names))):
        loader.add(find(name, installed))
    for kind, standard in DEFAULTS.items() if defaults else ():
        for name in standard if not loader.registry.names(kind) else ():
            loader.add(find(name, installed))
    return loader.loaded()


def load_alone(info: PluginInfo) -> Loaded:
    """Import this one plugin, to see whether it works and what it offers. Raises ``PluginError``."""
    loader = _Loader()
    loader.add(info)
    return loader.loaded()


def find(name: str, installed: Iterable[PluginInfo]) -> PluginInfo:
    """The one plugin of this name. Raises ``PluginError`` when it is unknown or claimed by several distributions."""
    installed = list(installed)
    found = [info for info in installed if info.name == name]
    if not found:
        near = did_you_mean(name, (info.name for info in installed))
        raise PluginError(
            f"unknown plugin '{name}'{near}",
            remedy=f"`verl-core plugins` lists those installed; to install it: {_install_command(name)}",
        )
    if len(found) > 1:
        raise PluginError(
            f"plugin '{name}' is claimed by {' and by '.join(f'{i.distribution} ({i.module})' for i in found)}",
            remedy=f"uninstall all but one of them: pip uninstall {found[-1].distribution}",
        )
    return found[0]


class _Loader:
    """Registers plugins one by one."""

    def __init__(self) -> None:
        self.registry, self.observers = Registry(), Observers()
        self._plugins: list[PluginInfo] = []
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)

    def loaded(self) -> Loaded:
        return Loaded(self.registry, self.observers, tuple(self._plugins))

    def add(self, info: PluginInfo) -> None:
        try:
            plugin: object = metadata.EntryPoint(info.name, info.module, PROJECT).load()
        except Exception as error:  # the border to foreign modules, which may raise anything
            raise PluginError(
                f"cannot be imported: {_reason(error)}", where=str(info), remedy=_remedy(info, error)
            ) from error
        try:
            self._manager.register(plugin, info.name)
            self._connect(info, plugin)
        except VerlError:
            raise
        except Exception as error:  # the same border
            raise PluginError(
                f"cannot be registered: {_reason(error)}", where=str(info), remedy=_remedy(info, error)
            ) from error
        self._plugins.append(info)

    def _connect(self, info: PluginInfo, plugin: object) -> None:
        """Let it register its providers, and its observers listen."""
        callers = self._manager.get_hookcallers(plugin)
        if not callers:
            raise PluginError("implements no hook", where=str(info), remedy="mark its functions with @hookimpl")
        for caller in callers:
            impl = next(impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
            if impl.wrapper or impl.hookwrapper:
                raise PluginError(f"'{caller.name}' is a hook wrapper", where=str(info), remedy="use a plain @hookimpl")
            if caller.name in HOOKS:
                self.observers.add(caller.name, impl.function, owner=info.name, arguments=impl.argnames)
            elif caller.name in _KIND_OF_HOOK:
                kind = _KIND_OF_HOOK[caller.name]
                impl.function(partial(self.registry.register, kind, plugin=info.name, distribution=info.distribution))
            elif not impl.optionalhook:
                near = did_you_mean(caller.name, (*_KIND_OF_HOOK, *HOOKS))
                raise PluginError(f"unknown hook '{caller.name}'{near}", where=str(info), remedy=_remedy(info, None))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _remedy(info: PluginInfo, error: Exception | None) -> str:
    if isinstance(error, ImportError) and _has_extra(info.distribution, info.name):
        return f"pip install '{info.distribution}[{info.name}]'"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install the package that has module '{error.name}', or leave the plugin out"
    return f"install a release of {info.distribution} that fits this verl-core, or leave the plugin out"


def _install_command(name: str) -> str:
    if _has_extra(DISTRIBUTION, name):
        return f"pip install '{DISTRIBUTION}[{name}]'"
    return f"pip install {DISTRIBUTION}-{name}"


def _has_extra(distribution: str, name: str) -> bool:
    try:
        extras = metadata.metadata(distribution).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return False
    return name.replace("_", "-") in extras
