"""Configs of other dialects, brought into ours key by key. What has no counterpart is told, with its line.

A key that the schema knows is ours. One that ``aliases`` knows is replaced by what it means here. Any other is unknown:
``config import`` lists it, a start refuses it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import ConfigError
from ..plugins import discover
from .aliases import AMBIGUOUS, ARTICLE, BLOCKS, VERL, VERL_DEFAULTS, Meaning, Outcome, Rule, Values
from .findings import raise_all, where
from .native import native
from .schema import Config
from .suggest import nearest

_log = logging.getLogger("verl.config")
_RULES: dict[str, Rule] = {**VERL, **ARTICLE}
_ORDER = {key: number for number, key in enumerate(_RULES)}  # a special key comes after the general one
_ENV = re.compile(r"\$\{oc\.env:[^${}]*\}")
_MANY_STEPS = 1_000_000  # so that the epochs are the limit


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a foreign key."""

    key: str
    place: str  # "file:line", "--set", "" for a key that the file leaves out
    outcome: Outcome | Literal["unknown"]
    says: str
    option: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.key}: {self.says}" if self.place else f"{self.key}: {self.says}"


@dataclass(frozen=True, slots=True)
class Translation:
    tree: dict[str, object]
    places: dict[str, str]
    told: tuple[Told, ...]  # in the order of the file; those that were taken as they are, too

    def of(self, *outcomes: str) -> list[Told]:
        return [told for told in self.told if told.outcome in outcomes]


def is_foreign(tree: Mapping[str, object]) -> bool:
    """Whether a key is beyond doubt one of another dialect."""
    return any(_known(key) and key not in AMBIGUOUS and not _within(key, AMBIGUOUS) for key, _ in _leaves(tree))


def understood(
    tree: dict[str, object], places: dict[str, str], *, whole: bool
) -> tuple[dict[str, object], dict[str, str]]:
    """A file (``whole``) or an override as a start reads it: keys of other dialects replaced, with a notice for each
    that is not simply taken over. Raises ``ConfigError`` for unknown ones, but leaves those in our blocks to the
    schema."""
    if not is_foreign(tree):
        return tree, places
    done = translate(tree, places, keep_unknown=True, whole=whole and "defaults" not in tree)
    remedy = "take it out, or let verl-core config import write the file anew without it"
    foreign = [told for told in done.of("unknown") if native(told.key.partition(".")[0]) is None]
    raise_all([ConfigError(told.says, where=where(told.key, places), remedy=remedy) for told in foreign])
    for told in done.told:
        if told.says and told.outcome != "unknown":
            _log.warning("%s", told)
    return done.tree, done.places


def translate(
    tree: Mapping[str, object],
    places: Mapping[str, str],
    *,
    keep_unknown: bool = False,
    whole: bool = True,
    installed: Iterable[str] | None = None,
) -> Translation:
    """``whole``: with what a file needs beside its own keys; ``installed``: names of plugins, default those that are.

    Raises ``ConfigError`` for a ``${…}`` that leads nowhere.
    """
    names = frozenset(info.name for info in discover()) if installed is None else frozenset(installed)
    leaves = _resolved(tree, places) if is_foreign(tree) else dict(_leaves(tree))
    out: dict[str, object] = {}
    marks: dict[str, str] = {}
    told: list[Told] = []
    for key, value in sorted(leaves.items(), key=lambda leaf: _ORDER.get(leaf[0], -1)):
        place = places.get(key, "")
        if not _known(key):
            if native(key) or keep_unknown:
                _put(out, marks, key, value, place)
            if not native(key):
                near = nearest(key, _RULES, cutoff=0.9)
                told.append(Told(key, place, "unknown", "unknown key" + (f"; did you mean {near}?" if near else "")))
            continue
        if value is None:
            continue
        meaning = _meaning(key, value, leaves, names)
        for name, converted in meaning.keys.items():
            _put(out, marks, name, converted, place)
        told.append(Told(key, place, meaning.outcome, meaning.says, meaning.option))
    if whole:
        told += _companions(out, leaves)
    return Translation(out, marks, tuple(sorted(told, key=lambda t: (not t.place, _line(t.place)))))


def _meaning(key: str, value: object, values: Values, installed: frozenset[str]) -> Meaning:
    if key in _RULES:
        return _RULES[key](value, values, installed)
    return Meaning("none", says=BLOCKS[next(block for block in BLOCKS if _within(key, (block,)))])


def _known(key: str) -> bool:
    """Whether a key is one of another dialect, and not one that the schema has as well."""
    return (key in _RULES or _within(key, BLOCKS)) and native(key) in (None, "option")


def _within(key: str, blocks: Iterable[str]) -> bool:
    return any(key == block or key.startswith(f"{block}.") for block in blocks)


def _companions(out: dict[str, object], values: Values) -> Iterator[Told]:
    """What a whole file needs beside its own keys, and what it leaves to defaults that differ."""
    step, batch = _get(out, "training.prompts_per_step"), Config().rollout.prompts_per_batch
    if isinstance(step, int) and step > 0 and step % batch and _get(out, "rollout.prompts_per_batch") is None:
        fits = max(size for size in range(1, min(step, batch) + 1) if step % size == 0)
        _put(out, {}, "rollout.prompts_per_batch", fits, "")
        yield Told("rollout.prompts_per_batch", "", "taken", f"{fits}, which divides {step}")
    if _get(out, "total_epochs") is not None and _get(out, "total_steps") is None:
        _put(out, {}, "total_steps", _MANY_STEPS, "")
        says = f"{_MANY_STEPS}, so that total_epochs is the limit"
        if _get(out, "training.optim.schedule") not in (None, "constant"):
            says += "; give the true number, the learning rate follows it"
        yield Told("total_steps", "", "taken", says)
    if not any(_within(key, ("trainer", "actor_rollout_ref")) for key in values):
        return
    for key, default in VERL_DEFAULTS.items():
        ours = attrgetter(key)(Config())
        if _get(out, key) is None and ours != default:
            yield Told(key, "", "differs", f"not in the file: verl's default is {default}, here it is {ours}")
    if _get(out, "model.reward.name") is None:
        says = "verl picks a reward by the row's data_source; here it is exact_match unless this says otherwise"
        yield Told("model.reward.name", "", "differs", says)


# --- trees -----------------------------------------------------------------------------------


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and value of everything that is no block; what lies below a native leaf is its value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and native(key) != "value":
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _get(tree: Mapping[str, object], key: str) -> object:
    node: object = tree
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _put(tree: dict[str, object], marks: dict[str, str], key: str, value: object, place: str) -> None:
    """Set a key; lists of plugins grow instead."""
    *blocks, name = key.split(".")
    node = tree
    for number, block in enumerate(blocks):
        inner = node.get(block)
        if not isinstance(inner, dict):
            inner = node[block] = {}
        node = inner
        marks.setdefault(".".join(blocks[: number + 1]), place)
    known = node.get(name)
    if key == "plugins" and isinstance(known, list) and isinstance(value, list):
        value = [*known, *(item for item in value if item not in known)]
    node[name] = value
    marks[key] = place


def _resolved(tree: Mapping[str, object], places: Mapping[str, str]) -> dict[str, object]:
    """The leaves with references to other keys put in, since those move; the environment's stay as they are written."""
    held: list[str] = []

    def hide(match: re.Match[str]) -> str:
        held.append(match[0])
        return f"\x00{len(held) - 1}\x00"

    def show(value: object) -> object:
        if isinstance(value, list):
            return [show(item) for item in value]
        if isinstance(value, Mapping):
            return {key: show(item) for key, item in value.items()}
        return re.sub("\x00(\\d+)\x00", lambda m: held[int(m[1])], value) if isinstance(value, str) else value

    whole = OmegaConf.create(cast("dict[str, object]", _mapped(tree, lambda text: _ENV.sub(hide, text))))
    found: dict[str, object] = {}
    for key, value in _leaves(tree):
        if "${" in str(value) and not _within(key, BLOCKS):
            try:
                value = OmegaConf.select(whole, key, throw_on_resolution_failure=True)
                value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            except OmegaConfBaseException as error:
                what = "refers to a key that does not exist"
                raise ConfigError(what, where=where(key, places), remedy="correct the ${…}") from error
        found[key] = show(value)
    return found


def _mapped(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _line(place: str) -> int:
    number = place.rpartition(":")[2]
    return int(number) if number.isdigit() else 0
