"""What every committed folder has in common: its mark, JSON records that prove themselves, and where leftovers go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from blake3 import blake3

from .errors import ObjectExists, ObjectMissing, StorageConflict, StorageError, StorageTimeout, StorageUnavailable
from .protocols import FileStorage, Storage
from .types import Bytes

SUCCESS = "SUCCESS"  # empty, written last; without it nothing in the folder counts
STAGING = ".staging"
CONDEMNED = ".condemned"
CONDEMNED_MARK = "CONDEMNED"  # in a folder that no rename can move aside: nothing in it counts, its mark included
_UNCLEAR = (ObjectExists, StorageTimeout, StorageUnavailable, StorageConflict)  # the call may have landed


def content_hash(data: Bytes) -> str:
    """``blake3:`` and 64 hex digits."""
    return f"blake3:{blake3(data).hexdigest()}"


def seal(fields: Mapping[str, object]) -> bytes:
    """One line of JSON, keys sorted, with a ``hash`` over all the other fields (plain values, no records)."""
    plain = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    return orjson.dumps(
        {**fields, "hash": content_hash(plain)}, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    )


def unseal(data: bytes) -> dict[str, Any]:
    """The fields of a sealed record. Raises ``ValueError`` when a single byte is not as it was sealed."""
    fields = orjson.loads(data)
    if not isinstance(fields, dict) or "hash" not in fields:
        raise ValueError("it is not a sealed record")
    del fields["hash"]
    if seal(fields) != data:
        raise ValueError("its content does not match its hash")
    return fields


def write(storage: Storage, path: str, data: Bytes | Iterable[Bytes]) -> int:
    """Write one file of a folder that is not committed yet; returns its size."""
    return storage.write(path, data) if isinstance(storage, FileStorage) else storage.put(path, data)


def create(storage: Storage, path: str, data: bytes, *, conditional: bool = True) -> bytes | None:
    """Create an object once. Returns None when it is there with this content, else the content of the one that is.

    A call whose answer was lost is decided by looking, and may be made again at any time: an earlier try that lands
    late finds the name taken. ``conditional=False``, for stores that ignore create-if-absent: look, then put, which
    holds only while nobody else writes this name.
    """
    try:
        if conditional:
            storage.put(path, data, if_absent=True)
        elif (found := _content(storage, path)) is not None:
            return None if found == data else found
        else:
            storage.put(path, data)
    except _UNCLEAR as error:
        found = _content(storage, path)
        if found is None:
            raise _unsettled(error) from error
        return None if found == data else found
    return None


def _unsettled(error: StorageError) -> StorageError:
    if isinstance(error, ObjectExists):  # deleted in between, or a store that is not of one mind: try again
        return StorageConflict("the name is taken, but nothing is there", where=error.where, remedy=error.remedy)
    return error


def _content(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.get(path)
    except ObjectMissing:
        return None


def move_aside(storage: FileStorage, folder: str, name: str) -> str:
    """Move a folder to a free name below ``.condemned/`` and return where it is now."""
    target, number = f"{CONDEMNED}/{name}", 0
    while True:
        try:
            storage.move(folder, target)
        except ObjectExists:
            number += 1
            target = f"{CONDEMNED}/{name}.{number}"
        else:
            return target


def sweep_staging(storage: FileStorage, leftover: re.Pattern[str], living_attempt: int) -> list[str]:
    """Delete what attempts other than the living one left in ``.staging/``; the pattern's group is the attempt."""
    names = sorted({stat.path.split("/")[1] for stat in storage.list(STAGING)})
    dead = [name for name in names if (match := leftover.match(name)) and int(match[1]) != living_attempt]
    for name in dead:
        storage.delete(f"{STAGING}/{name}")
    if len(dead) == len(names):
        storage.delete(STAGING)  # with the empty folders of those who died before their first file
    return dead
