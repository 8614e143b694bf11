"""What an object store's client must offer, so that ``ObjectStorage`` can be the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from verl_core.types import ObjectStat

from .attempts import Problem
from .deadline import MIB

CREATED_BY_PROBE = ".verl-probe/"  # what the probe writes below a root; never listed


@dataclass
class ObjectConfig:
    """Keys that all object stores share."""

    timeout_s: float = 60.0  # of a call with all its retries, beside what its bytes need at min_mib_per_s
    attempts: int = 5  # of one request
    alert_after_s: float = 3.0  # a call without progress for so long raises an alert
    min_mib_per_s: float = 1.0
    part_mib: int = 16  # of multipart uploads and ranged downloads
    encryption: str = ""  # "" (the bucket's default) | "AES256" (SSE-S3) | "aws:kms" (SSE-KMS)
    kms_key_id: str | None = None
    versioning: str = "any"  # any | on | off: what the bucket must have


@dataclass(frozen=True, slots=True)
class Head:
    size: int
    mtime: float  # seconds since the epoch
    encryption: str = ""
    mark: str = ""  # of the create that made it, where the store keeps it


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of an object, the size of the whole, and the tag of the version that they are of."""

    data: bytes
    size: int
    tag: str


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing, in the order of keys; ``next`` is where to go on, empty at the end."""

    found: Sequence[ObjectStat]  # paths are whole keys here
    next: str = ""


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun and neither finished nor given up."""

    key: str
    id: str
    age_s: float  # by the clock of the server


class ObjectClient(Protocol):
    """One bucket. Each method is one request, raises errors of ``raw``, and can be cancelled at any time."""

    raw: tuple[type[Exception], ...]
    max_single_put: int  # bytes of the largest object that one request can carry

    def explain(self, error: Exception) -> Problem: ...

    async def put(self, key: str, data: bytes, *, if_absent: bool, mark: str = "") -> None:
        """``mark``: kept with the object, so that whoever made it knows it again."""
        ...

    async def get(
        self, key: str, start: int, end: int, tag: str = "", arrives: Callable[[int], None] = lambda size: None
    ) -> Piece | None:
        """Bytes ``start`` to ``end`` (exclusive), of the version ``tag`` if it is given; None beyond the end.

        ``arrives`` is told how many bytes will come, before they do.
        """
        ...

    async def head(self, key: str) -> Head | None: ...

    async def check_bucket(self) -> None:
        """Raise unless the bucket is there."""
        ...

    async def page(self, prefix: str, after: str, limit: int = 1000) -> Page: ...

    async def delete(self, keys: Sequence[str]) -> None:
        """At most 1,000."""
        ...

    async def begin_upload(self, key: str, mark: str = "") -> str: ...

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> str:
        """Returns the part's tag; numbers count from 1."""
        ...

    async def finish_upload(self, key: str, upload: str, tags: Sequence[str], *, if_absent: bool) -> None: ...

    async def abort_upload(self, key: str, upload: str) -> None: ...

    async def uploads(self, prefix: str) -> Sequence[Upload]: ...

    async def versioning(self) -> bool:
        """Whether the bucket keeps old versions."""
        ...


def part_size(part_mib: int, number: int) -> int:
    """Bytes of part ``number``: they grow, so that 10,000 parts (the limit of the protocol) hold terabytes."""
    return part_mib * MIB << (number - 1) // 1000
