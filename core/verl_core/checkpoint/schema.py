"""Locks the schema of what is stored: ``schema_version.json`` says under which schema a checkpoint was written.

A schema has a number and the fields of every stored record. Before a checkpoint is read, both are held against what is
known here: today's schema is read as it is, an older one through its migrations, anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path

import orjson

from ..errors import RunMismatch
from ..protocols import CheckpointReader
from ..rollout.codec import BatchMeta, Trailer
from ..state.lines import Entry
from ..state.runtime import RewardSnapshot, RuntimeState
from ..types import BatchKey, BatchRef, CheckpointRef, CheckpointState, TensorSums
from .format import FORMAT, FileEntry, StoredChunk, StoredTensor
from .migrations import STEPS, Migrated, Refusal, Step

SCHEMA = 2  # raise it with every change of a stored record that was released, and add a step to migrations
FILE = "schema_version.json"
_STORED: tuple[type, ...] = (
    BatchKey, BatchMeta, BatchRef, CheckpointRef, CheckpointState, Entry, FileEntry, RewardSnapshot, RuntimeState,
    StoredChunk, StoredTensor, TensorSums, Trailer,
)  # fmt: skip
_KNOWN = Path(__file__).with_name("migrations") / "schemas"  # N.json: the schema_version.json of schema N
Classes = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Schema:
    """One ``schema_version.json``. ``classes``: record → its fields as declared (schema 1: a hash of them)."""

    number: int
    code_version: str
    format: int  # of tensor files and manifests
    classes: Classes


@cache
def schema_version() -> bytes:
    """The content of today's ``schema_version.json``."""
    content = {
        "schema": SCHEMA,
        "code_version": metadata.version("verl-core"),
        "format": FORMAT,
        "classes": {cls.__name__: signature(cls) for cls in _STORED},
    }
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def signature(cls: type) -> list[str]:
    """The fields of a record, ``name: type`` as declared, in their order."""
    return [f"{field.name}: {field.type}" for field in fields(cls)]


def parse(found: bytes, where: str = FILE) -> Schema:
    """Raises ``RunMismatch`` when it is no schema record. Before schema 2 there was no number in it."""
    try:
        content = orjson.loads(found)
        number, classes = int(content.get("schema", 1)), dict(content["classes"])
        return Schema(number, str(content["code_version"]), int(content["format"]), classes)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunMismatch("this is not a schema record", where=where, remedy="resume from another step") from error


def known(number: int) -> Schema:
    """A schema that this version can read: today's, or one that was released before it."""
    return parse(schema_version() if number == SCHEMA else (_KNOWN / f"{number}.json").read_bytes())


def number_of(found: bytes, where: str = FILE) -> int:
    """The number of a schema, once it is known to be the one of that number. Raises ``RunMismatch``."""
    theirs = parse(found, where)
    remedy = f"use verl-core {theirs.code_version}, which wrote it"
    if not 1 <= theirs.number <= SCHEMA:
        what = f"schema {theirs.number} is newer than schema {SCHEMA}, the newest that verl-core {_version()} reads"
        raise RunMismatch(what, where=where, remedy=f"{remedy}, or a later version")
    ours = known(theirs.number)
    if theirs.format != ours.format:
        raise RunMismatch(f"format {theirs.format} is not known here", where=where, remedy=remedy)
    if differing := _differences(theirs.classes, ours.classes):
        what = f"not the schema {theirs.number} that was released: stored records have another shape: {differing}"
        raise RunMismatch(what, where=where, remedy=remedy)
    return theirs.number


def upgraded(reader: CheckpointReader, where: str = FILE, steps: Mapping[int, Step] = STEPS) -> CheckpointReader:
    """The reader of a checkpoint as if it had been written today. Raises ``RunMismatch`` with the reason."""
    written = number_of(reader.file(FILE), where)
    for number in range(written, SCHEMA):
        step = steps[number]
        if isinstance(step, Refusal):
            raise RunMismatch(f"schema {written} is not read any more: {step.reason}", where=where, remedy=step.remedy)
        reader = Migrated(reader, step, f"{where}, schema {number} → {number + 1}")
    return reader


def _differences(theirs: Classes, ours: Classes) -> str:
    """Which records differ, and in which fields where both name them."""
    found = []
    for name in sorted(theirs.keys() | ours.keys()):
        one, other = theirs.get(name), ours.get(name)
        if one == other:
            continue
        if one is None or other is None:
            found.append(f"{name} (only {'there' if other is None else 'here'})")
        elif isinstance(one, str) or isinstance(other, str):
            found.append(name)
        else:
            odd = [field for field in (*one, *other) if (field in one) != (field in other)]
            found.append(f"{name} ({', '.join(odd) or 'in another order'})")
    return ", ".join(found)


def _version() -> str:
    return metadata.version("verl-core")
