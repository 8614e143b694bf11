"""The schema as data: known keys, what a value may be, and one layer of keys brought into the schema's form."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Union, get_args, get_origin, get_type_hints

from ..errors import ConfigError
from .findings import where
from .schema import Config
from .suggest import did_you_mean, nearest

OPTIONS = "options"
ALIASES = {  # accepted at the top, native in a block
    "rollout_storage_uri": "storage",
    "max_concurrent_uploads": "storage",
}
_GROUPS = {"cluster": "distributed"}  # groups of fragments that are not called like their block
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@cache
def hints(block: type) -> Mapping[str, object]:
    """Field → type of a schema record."""
    return get_type_hints(block)


def block_type(hint: object) -> type | None:
    """The record behind a field that is a block of its own, else None."""
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def known_keys(block: str) -> tuple[str, ...]:
    """The keys that the schema has in a block (dotted name, ``""`` for the top), without ``options``."""
    record: type = Config
    for part in block.split(".") if block else ():
        found = block_type(hints(record).get(part))
        if found is None:
            return ()
        record = found
    return tuple(key for key in hints(record) if key != OPTIONS)


def block_of_group(group: str) -> str:
    """Where the fragments of a group go: the block of its name, ``distributed`` for ``cluster``, else the top."""
    block = _GROUPS.get(group, group)
    return block if block_type(hints(Config).get(block)) else ""


def expected(hint: object) -> str:
    """The type of a field in words."""
    if get_origin(hint) in (Union, UnionType):
        inner = [expected(arg) for arg in get_args(hint) if arg is not NoneType]
        return " or ".join([*inner, "null"])
    if get_origin(hint) is list:
        item = get_args(hint)[0]
        if (record := block_type(item)) is not None:
            return f"a list of {{{', '.join(f'{key}: {expected(each)}' for key, each in hints(record).items())}}}"
        return f"a list of {expected(item).removeprefix('a ')}s"
    if isinstance(hint, type) and hint in _WORDS:
        return _WORDS[hint]
    return "a block of keys"


@dataclass(slots=True)
class Shaped:
    """A layer in the schema's form: aliases moved, a plugin's keys under ``options``; and what did not fit."""

    tree: dict[str, object] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)


def shape(tree: Mapping[str, object], places: Mapping[str, str]) -> Shaped:
    """Bring the keys of one layer into the schema's form. Unknown keys are errors, with the nearest known one."""
    done = Shaped()
    done.tree = _block(_moved(tree, places, done), Config, "", places, done)
    return done


def _moved(tree: Mapping[str, object], places: Mapping[str, str], done: Shaped) -> dict[str, object]:
    moved = {key: value for key, value in tree.items() if key not in ALIASES}
    for key in tree.keys() & ALIASES.keys():
        block, value = ALIASES[key], tree[key]
        native = moved.get(block) or {}
        if not isinstance(native, Mapping):
            continue  # reported as no block
        if native.get(key, value) != value:
            what = f"given twice, here and as {block}.{key}"
            done.errors.append(ConfigError(what, where=where(key, places), remedy="keep one of them"))
        moved[block] = {**native, key: value}
        done.places[f"{block}.{key}"] = places.get(key, "")
    return moved


def _block(
    tree: Mapping[str, object], record: type, prefix: str, places: Mapping[str, str], done: Shaped
) -> dict[str, object]:
    known = hints(record)
    out: dict[str, object] = {}
    extra: dict[str, object] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        inner = block_type(known.get(key))
        if key not in known and OPTIONS not in known:
            done.errors.append(_unknown(str(key), path, prefix, places))
        elif key not in known:
            extra[str(key)] = value
            done.places.update(_placed(path, f"{prefix}{OPTIONS}.{key}", places))
        elif inner is None:
            out[key] = value
            done.places.update(_placed(path, path, places))
        elif isinstance(value, Mapping):
            out[key] = _block(value, inner, f"{path}.", places, done)
        elif value is not None:  # a block with nothing in it is None
            what = "a block of keys is expected"
            done.errors.append(ConfigError(what, where=where(path, places), remedy="write its keys below it"))
    given = out.get(OPTIONS)
    if extra and (given is None or isinstance(given, Mapping)):
        out[OPTIONS] = {**(given or {}), **extra}
    return out


def _placed(path: str, as_path: str, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The places of a key, and of what lies below it, under the name that it has in the schema."""
    for name, place in places.items():
        if name == path or name.startswith(f"{path}."):
            yield as_path + name[len(path) :], place


def _unknown(key: str, path: str, prefix: str, places: Mapping[str, str]) -> ConfigError:
    known = (*known_keys(prefix.removesuffix(".")), *(() if prefix else ALIASES))
    return ConfigError("unknown key", where=where(path, places), remedy=key_remedy(key, known))


def key_remedy(key: str, known: Collection[str]) -> str:
    """What to do about a key that is not among those ``known`` in its block."""
    elsewhere = [name for name in all_keys(Config) if name.rpartition(".")[2] == key]
    if elsewhere and nearest(key, known, cutoff=0.8) is None:
        return f"it belongs to {' or '.join(elsewhere)}"
    return did_you_mean(key, known)


def all_keys(record: type, prefix: str = "") -> Iterator[str]:
    """Dotted names of the blocks and keys of a schema record."""
    for key, hint in hints(record).items():
        yield f"{prefix}{key}"
        if (inner := block_type(hint)) is not None:
            yield from all_keys(inner, f"{prefix}{key}.")
