"""What a run was trained on, as hashes: a SHA-256 tree hash over the data, with an entry for each file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import DamagedError, DataError


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

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str | bytes) -> Fingerprint:
        """Raises DamagedError when ``text`` is not what ``to_json`` wrote."""
        try:
            record = json.loads(text)
            found = of_entries([Entry(str(e["name"]), int(e["size"]), str(e["sha256"])) for e in record["entries"]])
            if record["digest"] == found.digest:
                return found
        except (ValueError, KeyError, TypeError):
            pass
        raise DamagedError("not a data set fingerprint", remedy="restore .dataset_fingerprint from a backup")


def of_entries(entries: Sequence[Entry]) -> Fingerprint:
    """The fingerprint over ``entries``; names and numbers are length-free JSON, so that none can pass for another."""
    tree = json.dumps([[e.name, e.size, e.sha256] for e in entries], separators=(",", ":"))
    return Fingerprint(sha256_of(tree.encode()), tuple(entries))


def fingerprint(files: Sequence[tuple[str, Path]]) -> Fingerprint:
    """Hash ``files``, given as (name in the fingerprint, path). Raises DataError for an unreadable file."""
    return of_entries([_entry(name, path) for name, path in files])


def sha256_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def difference(old: Fingerprint, new: Fingerprint) -> list[str]:
    """One line for each way in which ``new`` differs from ``old``; empty when they are equal."""
    before, after = ({e.name: e for e in f.entries} for f in (old, new))
    lines = [f"{name}: gone" for name in before if name not in after]
    lines += [f"{name}: new" for name in after if name not in before]
    lines += [
        f"{name}: content differs ({before[name].size} bytes, {before[name].sha256[:15]}… → "
        f"{e.size} bytes, {e.sha256[:15]}…)"
        for name, e in after.items()
        if name in before and before[name] != e
    ]
    if not lines and old.digest != new.digest:
        lines.append("the same files in another order")
    return lines


def _entry(name: str, path: Path) -> Entry:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return Entry(name, stream.tell(), f"sha256:{digest}")
    except OSError as error:
        raise DataError(error.strerror or str(error), where=str(path)) from error
