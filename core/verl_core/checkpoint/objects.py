"""Checkpoints on a store that cannot rename: each save has a folder of its own, and one object picks which counts.

``step_SSSSSS/attempt_A_<random>/`` holds the files of one try to save; ``step_SSSSSS/SUCCESS``, created once, names the
folder that counts. So what a dead attempt left half-written is in nobody's way, and a call that was given up but lands
later changes nothing that is read. ``CONDEMNED`` in a folder keeps a damaged checkpoint from being read or swept.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..committed import CONDEMNED_MARK, SUCCESS, create, seal, unseal
from ..errors import DamagedCheckpoint, ObjectMissing, StorageError
from ..protocols import Storage
from ..testing import crash
from ..types import CheckpointRef, RunIdentity
from .shelf import Contents
from .summary import REMEDY

_FILE = re.compile(r"(step_\d{6,})/(?:(attempt_\d+_[0-9a-f]{8})/)?(.+)")
_FOLDER = re.compile(r"attempt_(\d+)_[0-9a-f]{8}")


class ObjectShelf:
    """A ``Shelf`` on any storage. Of a store that ignores create-if-absent it needs that nobody else saves."""

    def __init__(self, storage: Storage, identity: RunIdentity) -> None:
        self._storage, self._identity = storage, identity

    def begin(self, name: str, attempt: int) -> str:
        return f"{name}/attempt_{attempt}_{secrets.token_hex(4)}"

    def abandon(self, folder: str) -> None:
        with suppress(StorageError):
            self._storage.delete(folder)

    def commit(self, name: str, folder: str) -> bool:
        """May be called again after any error: until then nobody knows whether the folder counts, and it stays."""
        pick = seal({"folder": folder.removeprefix(f"{name}/")})
        conditional = self._storage.capabilities().conditional_put
        found = create(self._storage, f"{name}/{SUCCESS}", pick, conditional=conditional)
        crash.point("save.committed")
        return found is None

    def taken(self, name: str) -> bool:
        return self._storage.stat(f"{name}/{SUCCESS}") is not None

    def place(self, name: str) -> str | None:
        folder = self._picked(name)
        if folder is None or self._storage.stat(f"{folder}/{CONDEMNED_MARK}") is not None:
            return None
        return folder

    def contents(self) -> Mapping[str, Contents]:
        found: dict[str, Contents] = {}
        for name, folders in self._listed().items():
            if SUCCESS not in folders[""]:
                continue
            try:
                folder = self._picked(name)
            except DamagedCheckpoint:
                found[name] = Contents(None, {})
                continue
            sizes = folders.get((folder or "").removeprefix(f"{name}/"), {})
            if folder is not None and CONDEMNED_MARK not in sizes:
                found[name] = Contents(folder, {**sizes, SUCCESS: 0})
        return found

    def delete(self, ref: CheckpointRef) -> None:
        """First the mark, then what it picked. A second call removes what a first one that failed has left."""
        try:
            folder = self._picked(ref.name)
        except DamagedCheckpoint:
            folder = None
        if folder is not None and ref.attempt not in (-1, _attempt(folder.removeprefix(f"{ref.name}/"))):
            return  # a later attempt saved the step again
        gone = [folder] if folder is not None else self._unmarked(ref.name, ref.attempt)
        self._storage.delete(f"{ref.name}/{SUCCESS}")
        crash.point("delete.unmarked")
        for path in gone:
            self._storage.delete(path)
            crash.point("delete.removed")

    def condemn(self, name: str, attempt: int) -> str:
        """Mark the folder that counts, then free the name; with an unreadable mark, all folders under the name."""
        try:
            folder = self._picked(name)
            marked = [] if folder is None else [folder]
        except DamagedCheckpoint:
            marked = [f"{name}/{folder}" for folder in self._listed(name).get(name, {}) if folder]
        for folder in marked:
            self._storage.put(f"{folder}/{CONDEMNED_MARK}", b"%d\n" % attempt)
            crash.point("condemn.marked")
        self._storage.delete(f"{name}/{SUCCESS}")
        crash.point("condemn.freed")
        return ", ".join(marked) or name

    def settle(self) -> None:
        """An object is durable when it is there."""

    def sweep(self) -> Sequence[str]:
        """Remove what attempts before this one left without being picked; return the folders."""
        swept = []
        for name, folders in self._listed().items():
            try:
                picked = self._picked(name) if SUCCESS in folders[""] else None
            except DamagedCheckpoint:
                continue
            for folder, sizes in folders.items():
                path = f"{name}/{folder}"
                dead = bool(folder) and _attempt(folder) < self._identity.attempt
                if dead and path != picked and CONDEMNED_MARK not in sizes:
                    self._storage.delete(path)
                    swept.append(path)
        return swept

    def _unmarked(self, name: str, attempt: int) -> list[str]:
        folders = self._listed(name).get(name, {})
        left = [f for f, sizes in folders.items() if f and _attempt(f) == attempt and CONDEMNED_MARK not in sizes]
        return [f"{name}/{folder}" for folder in left]

    def _picked(self, name: str) -> str | None:
        where = f"{self._storage.uri}/{name}/{SUCCESS}"
        try:
            fields = unseal(self._storage.get(f"{name}/{SUCCESS}"))
        except ObjectMissing:
            return None
        except ValueError as error:
            raise DamagedCheckpoint(f"the mark is damaged: {error}", where=where, remedy=REMEDY) from error
        folder = fields.get("folder")
        if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
            raise DamagedCheckpoint("the mark picks no folder", where=where, remedy=REMEDY)
        return f"{name}/{folder}"

    def _listed(self, name: str = "") -> dict[str, dict[str, dict[str, int]]]:
        """Name → folder ("" for the name itself) → path below it → bytes."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for stat in self._storage.list(name):
            if match := _FILE.fullmatch(stat.path):
                folders = found.setdefault(match[1], {"": {}})
                folders.setdefault(match[2] or "", {})[match[3]] = stat.size
        return found


def _attempt(folder: str) -> int:
    match = _FOLDER.fullmatch(folder)
    return int(match[1]) if match else -1
