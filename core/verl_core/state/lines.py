"""A line of the state log: a JSON object with its own hash and that of the line before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from blake3 import blake3

from ..errors import JournalError

START = "0" * 32  # ``prev`` of the first line


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. ``state`` is the state after it; ``payload`` holds JSON values only."""

    seq: int
    time: float  # seconds since the epoch, for people: nothing is decided by it
    run_id: str
    branch: int
    attempt: int
    nonce: str
    state: str
    event: str
    payload: Mapping[str, object]
    prev: str
    hash: str
    durable: int | None = None  # lines that were durable when this one was handed in; None: all before it

    def body(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in Entry.__slots__ if name != "hash"}


def seal(entry_body: Mapping[str, object]) -> tuple[str, bytes]:
    """The hash of a line's body, and the whole line."""
    body = orjson.dumps(entry_body)
    digest = blake3(body).hexdigest(16)
    return digest, body[:-1] + b',"hash":"' + digest.encode() + b'"}\n'


def made(
    before: Entry | None,
    time: float,
    identity: tuple[str, int, int, str],  # run id, branch, attempt, nonce
    state: str,
    event: str,
    payload: object,
    durable: int | None = None,
) -> bytes:
    """The line that follows ``before``. ``payload``: a record or mapping of JSON values."""
    run_id, branch, attempt, nonce = identity
    body = {
        "seq": 0 if before is None else before.seq + 1,
        "time": round(time, 6),
        "run_id": run_id,
        "branch": branch,
        "attempt": attempt,
        "nonce": nonce,
        "state": state,
        "event": event,
        "payload": payload,
        "prev": START if before is None else before.hash,
    }
    if durable is not None:
        body["durable"] = durable
    return seal(body)[1]


def parse(line: bytes, where: str) -> Entry:
    """Raises JournalError when the line is not what its hash says."""
    try:
        fields = orjson.loads(line)
        digest = fields.pop("hash")
        if seal(fields)[0] != digest:
            raise JournalError("the line is not what its hash says", where=where)
        return Entry(**fields, hash=digest)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JournalError(f"not a line of a state log ({error})", where=where) from None


def whole(line: bytes, where: str) -> Entry:
    """``parse``, of a line that must end where it ends."""
    entry = parse(line, where)
    if not line.endswith(b"\n"):
        raise JournalError("the line is cut short", where=where)
    return entry


def check_chain(entry: Entry, before: Entry | None, where: str) -> None:
    """Raises JournalError unless the entry follows the one before (None: it is the first)."""
    expected = (START, 0) if before is None else (before.hash, before.seq + 1)
    if (entry.prev, entry.seq) != expected:
        raise JournalError("the chain of hashes is broken", where=where)
