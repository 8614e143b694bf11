"""Batches in a listing of the rollouts prefix: one pass, whatever its size, and no look at a single object.

A batch's folder ``epoch_E/batch_B/`` holds its files, or folders that do: ``again_N/`` stands in for a folder that is
marked ``CONDEMNED``, ``attempt_A/`` keeps attempts apart where a store cannot create once. A folder counts when it has
``SUCCESS`` and is not condemned; of several the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..committed import CONDEMNED_MARK, SUCCESS
from ..types import BatchKey, ObjectStat

_ROOT = re.compile(r"epoch_(0|[1-9]\d*)/batch_(0|[1-9]\d*)/")
_FOLDER = re.compile(r"(?:attempt_(0|[1-9]\d*)/)?(?:again_([1-9]\d*)/)?")


@dataclass(slots=True)
class Found:
    """``committed``: batch → the folder below its own that counts, "" for its own. ``begun``: batch → names below its
    folder, where none counts."""

    committed: dict[BatchKey, str] = field(default_factory=dict)
    begun: dict[BatchKey, tuple[str, ...]] = field(default_factory=dict)


def find(stats: Iterable[ObjectStat]) -> Found:
    """``stats`` are sorted by path, so that what belongs to one batch stands together, ``SUCCESS`` before all but
    ``CONDEMNED``."""
    found, root, key, names = Found(), "\0", BatchKey(-1, -1), list[str]()
    for stat in stats:
        path = stat.path
        if path.startswith(root):
            if names:  # else it is known already that the batch is committed
                names.append(path[len(root) :])
            continue
        _take(found, key, names)
        match, root, names = _ROOT.match(path), "\0", []
        if match is not None:
            root, key = match[0], BatchKey(int(match[1]), int(match[2]))
            name = path[len(root) :]
            if name == SUCCESS:
                found.committed[key] = ""
            else:
                names.append(name)
    _take(found, key, names)
    return found


def whole(names: Sequence[str]) -> list[str]:
    """The folders of a batch that are committed and not condemned, the one that counts first."""
    folders = {name.removesuffix(SUCCESS) for name in names if name.endswith(SUCCESS)}
    ranked = [(int(match[1] or -1), int(match[2] or 0), f) for f in folders if (match := _FOLDER.fullmatch(f))]
    return [f for *_, f in sorted(ranked) if f + CONDEMNED_MARK not in names]


def standing(names: Sequence[str]) -> str | None:
    """The folder of a batch that counts."""
    if SUCCESS in names and CONDEMNED_MARK not in names:
        return ""
    return next(iter(whole(names)), None)


def free(names: Sequence[str], base: str = "") -> str:
    """The folder that a commit goes to: ``base``, or what stands in for it when it is condemned."""
    folder, number = base, 0
    while folder + CONDEMNED_MARK in names:
        number += 1
        folder = f"{base}again_{number}/"
    return folder


def _take(found: Found, key: BatchKey, names: Sequence[str]) -> None:
    if not names:
        return
    folder = standing(names)
    if folder is None:
        found.begun[key] = tuple(names)
    else:
        found.committed[key] = folder
