"""What is a secret, and how a config is shown without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from typing import Any, TypeVar, cast

from ..masking import MASK, URL, secret_name

__all__ = ["MASK", "Path", "kept_reference", "masked", "secret_leaf", "secret_name", "secret_value"]

T = TypeVar("T")
Path = tuple[str | int, ...]  # of a leaf in the tree of a config
_DEFAULT = re.compile(r"(\$\{oc\.env:\s*\w+)\s*,[^${}]*\}")


def secret_value(value: object) -> bool:
    """Whether a value is a URL that carries a password or a key."""
    return isinstance(value, str) and URL.search(value) is not None


def secret_leaf(path: Path, value: object, variables: Collection[str]) -> bool:
    """Whether a resolved leaf is secret: by a key on its path, by its value, or by a variable that it came from."""
    if value is None or isinstance(value, bool) or value == "":
        return False
    keys = [part for part in (path if isinstance(value, str) else path[-1:]) if isinstance(part, str)]
    return any(map(secret_name, (*keys, *variables))) or secret_value(value)


def masked(tree: T, secrets: Iterable[Path], mask: Callable[[object], object] = lambda _: MASK) -> T:
    """A copy of a tree of records, mappings and lists, with ``mask`` applied to what lies at the paths, if there."""
    copy = deepcopy(tree)
    for path in secrets:
        holder = _holder(copy, path)
        if holder is not None:
            holder[path[-1]] = mask(holder[path[-1]])
    return copy


def _holder(tree: object, path: Path) -> dict[Any, object] | None:
    """The mapping or list that holds the last part of the path, if it is there."""
    node: Any = tree
    holder: Any = None
    for part in path:
        holder = node if isinstance(node, dict | list) else getattr(node, "__dict__", {})
        try:
            node = holder[part]
        except (KeyError, IndexError, TypeError):
            return None
    return cast("dict[Any, object] | None", holder)


def kept_reference(source: object) -> object:
    """A secret as a config copy keeps it: its interpolation without a default, or the mask if it is in the clear."""
    if isinstance(source, str) and "${" in source and not secret_value(source):
        return _DEFAULT.sub(r"\1}", source)
    return MASK
