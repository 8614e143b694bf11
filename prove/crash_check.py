"""What the scenes share: a finding, and looks at folders that several of them take."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from verl_core.protocols import FileStorage

Promises = Mapping[tuple[str, str], str]  # kind, name → value


class Violation(Exception):
    """A state that a power cut may leave breaks the promise."""


def must(held: bool, what: str) -> None:
    if not held:
        raise Violation(what)


def promised(promises: Promises, kind: str) -> Iterator[tuple[str, str]]:
    """Name and value of each promise of a kind."""
    return ((name, value) for (found, name), value in promises.items() if found == kind)


def nothing_staged(storage: FileStorage) -> None:
    folder = f"{storage.uri}/.staging"
    left = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    must(not left, f"leftovers were not swept: {left}")


def next_attempt(storage: FileStorage) -> int:
    """A number of its own for each process, durable before anything that it does, as the state log has them."""
    attempt = 1 + (int(storage.get("attempt")) if storage.stat("attempt") else 0)
    storage.put("attempt", b"%d" % attempt)
    return attempt
