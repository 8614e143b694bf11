"""Where checkpoints lie, and which of them count: the part of the checkpointer that a kind of storage decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..committed import STAGING, SUCCESS, move_aside, sweep_staging
from ..errors import ObjectMissing, StorageError, VerlError
from ..protocols import FileStorage
from ..testing import crash
from ..types import CheckpointRef, RunIdentity

_FILE = re.compile(r"(step_\d{6,})/(.+)")
_LEFTOVER = re.compile(r"step_\d{6,}_(\d+)")


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies under the name of a checkpoint. ``folder`` is None where the mark cannot be read."""

    folder: str | None
    sizes: Mapping[str, int]  # path below the folder → bytes, ``SUCCESS`` among them


class Shelf(Protocol):
    """Names are ``step_SSSSSS``; a folder is where the files of one checkpoint lie."""

    def begin(self, name: str, attempt: int) -> str:
        """A folder to write a checkpoint into, where nobody reads."""
        ...

    def abandon(self, folder: str) -> None:
        """Remove a folder that was begun, if the storage can."""
        ...

    def commit(self, name: str, folder: str) -> bool:
        """Let the folder count; False when another checkpoint of that name does."""
        ...

    def taken(self, name: str) -> bool:
        """Whether something stands in the way of a commit under the name."""
        ...

    def place(self, name: str) -> str | None:
        """The folder that counts. Raises ``DamagedCheckpoint`` when the mark is unreadable."""
        ...

    def contents(self) -> Mapping[str, Contents]: ...

    def delete(self, ref: CheckpointRef) -> None: ...

    def condemn(self, name: str, attempt: int) -> str:
        """Keep what lies under the name, but out of sight: the name is free then. Returns where it is."""
        ...

    def settle(self) -> None:
        """Make durable what is listed: whoever committed it may have died before its own sync."""
        ...

    def sweep(self) -> Sequence[str]: ...


class FolderShelf:
    """On a file system: staged in ``.staging/``, published by one rename; what is damaged moves to ``.condemned/``."""

    def __init__(self, storage: FileStorage, identity: RunIdentity) -> None:
        self._storage, self._identity = storage, identity

    def begin(self, name: str, attempt: int) -> str:
        folder = f"{STAGING}/{name}_{attempt}"
        self._storage.delete(folder)  # of an earlier try of this attempt
        return folder

    def abandon(self, folder: str) -> None:
        with suppress(StorageError):
            self._storage.delete(folder)

    def commit(self, name: str, folder: str) -> bool:
        try:
            self._storage.write(f"{folder}/{SUCCESS}", b"")
            self._storage.publish(folder, name)
        except VerlError:
            self.abandon(folder)
            raise
        return True

    def taken(self, name: str) -> bool:
        return any(True for _ in self._storage.list(name))

    def place(self, name: str) -> str | None:
        return None if self._storage.stat(f"{name}/{SUCCESS}") is None else name

    def contents(self) -> Mapping[str, Contents]:
        folders: dict[str, dict[str, int]] = {}
        for stat in self._storage.list():
            if match := _FILE.fullmatch(stat.path):
                folders.setdefault(match[1], {})[match[2]] = stat.size
        return {name: Contents(name, sizes) for name, sizes in folders.items()}

    def delete(self, ref: CheckpointRef) -> None:
        """Take the folder away by one rename, then remove it."""
        gone = f"{STAGING}/{ref.name}_{self._identity.attempt}_deleted"
        self._storage.delete(gone)
        try:
            self._storage.move(ref.name, gone)
        except ObjectMissing:
            return
        crash.point("delete.moved")
        self._storage.delete(gone)

    def condemn(self, name: str, attempt: int) -> str:
        return move_aside(self._storage, name, f"{name}.{attempt}")

    def settle(self) -> None:
        self._storage.settle("")

    def sweep(self) -> Sequence[str]:
        return sweep_staging(self._storage, _LEFTOVER, self._identity.attempt)
