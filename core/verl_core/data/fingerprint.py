"""What a run was trained on, as hashes: a SHA-256 tree hash over the data, with an entry for each file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import DamagedError
from .hashes import FileHashes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One data file, or one made data set: its name, size in bytes and ``sha256:…``."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """``digest`` is SHA-256 over the entries in reading order, since the order of the files is that of the rows."""

    digest: str
    entries: tuple[Entry, ...]

    def to_json(self, val: Fingerprint | None = None) -> str:
        """``.dataset_fingerprint`` of a run with this training data, and with ``val`` to evaluate on."""
        record = asdict(self) if val is None else {**asdict(self), "val": asdict(val)}
        return json.dumps(record, indent=1) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Fingerprint:
        """Raises DamagedError when ``text`` is not what ``to_json`` wrote."""
        return _parsed(text, _fingerprint)

    @staticmethod
    def val_from_json(text: str | bytes) -> Fingerprint | None:
        """That of the evaluation data, None where there was none. Raises DamagedError likewise."""
        return _parsed(text, lambda record: _fingerprint(record["val"]) if "val" in record else None)


def _parsed(text: str | bytes, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        return read(json.loads(text))
    except (ValueError, KeyError, TypeError):
        remedy = "restore .dataset_fingerprint from a backup"
        raise DamagedError("not a data set fingerprint", remedy=remedy) from None


def _fingerprint(record: dict[str, Any]) -> Fingerprint:
    found = of_entries([Entry(str(e["name"]), int(e["size"]), str(e["sha256"])) for e in record["entries"]])
    if record["digest"] != found.digest:
        raise ValueError("the digest is not that of the entries")
    return found


def of_entries(entries: Sequence[Entry]) -> Fingerprint:
    """The fingerprint over ``entries``; names and numbers are length-free JSON, so that none can pass for another."""
    tree = json.dumps([[e.name, e.size, e.sha256] for e in entries], separators=(",", ":"))
    return Fingerprint(sha256_of(tree.encode()), tuple(entries))


def fingerprint(files: Sequence[tuple[str, Path]], hashes: FileHashes | None = None) -> Fingerprint:
    """Hash ``files``, given as (name in the fingerprint, path). Raises DataError for an unreadable file."""
    found = (hashes or FileHashes()).of_all([path for _, path in files])
    return of_entries([Entry(name, one.size, one.sha256) for (name, _), one in zip(files, found, strict=True)])


def sha256_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def difference(
    old: Fingerprint, new: Fingerprint, paths: Sequence[Path] = (), hashes: FileHashes | None = None
) -> list[str]:
    """One line for each way in which ``new`` differs from ``old``; empty when they are equal.

    With ``paths`` (of the new files, in order) those that only grew are told apart: their beginning is read again.
    """
    before, after = _by_name(old.entries), _by_name(new.entries)
    at = dict(zip(after, paths, strict=True)) if paths else {}
    lines = [f"{name}: gone" for name in before if name not in after]
    lines += [f"{name}: new" for name in after if name not in before]
    for name, entry in after.items():
        if name in before and before[name] != entry:
            lines.append(f"{name}: {_change(before[name], entry, at.get(name), hashes or FileHashes())}")
    if not lines and old.digest != new.digest:
        lines.append("the same files in another order")
    return lines


def _change(old: Entry, new: Entry, path: Path | None, hashes: FileHashes) -> str:
    if path is not None and new.size > old.size and hashes.begins_with(path, old.size, old.sha256):
        return f"{new.size - old.size} bytes appended, the first {old.size} are as before"
    return f"content differs ({old.size} bytes, {old.sha256[:15]}… → {new.size} bytes, {new.sha256[:15]}…)"


def _by_name(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Files of several folders may have one name: the second is ``name (2)``."""
    found: dict[str, Entry] = {}
    count: Counter[str] = Counter()
    for entry in entries:
        count[entry.name] += 1
        found[entry.name if count[entry.name] == 1 else f"{entry.name} ({count[entry.name]})"] = entry
    return found
