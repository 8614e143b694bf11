"""Locks the schema of what is stored: ``schema_version.json`` has the format and a signature of every stored record."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from importlib import metadata

import orjson

from ..committed import content_hash
from ..errors import RunMismatch
from ..types import BatchKey, BatchRef, CheckpointRef, TensorSums
from .format import FORMAT, FileEntry, StoredChunk, StoredTensor

_STORED: tuple[type, ...] = (BatchKey, BatchRef, CheckpointRef, FileEntry, StoredChunk, StoredTensor, TensorSums)


@cache
def schema_version() -> bytes:
    """The content of ``schema_version.json``."""
    content = {
        "code_version": metadata.version("verl-core"),
        "format": FORMAT,
        "classes": {cls.__name__: signature(cls) for cls in _STORED},
    }
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def signature(cls: type) -> str:
    """Blake3 over the names and declared types of a record's fields, in their order."""
    return content_hash("\n".join(f"{field.name}: {field.type}" for field in fields(cls)).encode())


def check(found: bytes, where: str = "schema_version.json") -> None:
    """Raise ``RunMismatch`` with the reason when this version cannot read what was stored under ``found``."""
    try:
        theirs, ours = orjson.loads(found), orjson.loads(schema_version())
        remedy = f"use verl-core {theirs['code_version']}, which wrote it"
        format_found, classes = theirs["format"], dict(theirs["classes"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunMismatch("this is not a schema record", where=where) from error
    if format_found != ours["format"]:
        raise RunMismatch(f"format {format_found} is not known here", where=where, remedy=remedy)
    names = classes.keys() | ours["classes"].keys()
    differing = sorted(name for name in names if classes.get(name) != ours["classes"].get(name))
    if differing:
        raise RunMismatch(f"stored records have another shape: {', '.join(differing)}", where=where, remedy=remedy)
