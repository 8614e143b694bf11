"""``Storage`` on an object store: the same for all of them, on top of a client of one bucket.

A put of a name is one request (or one multipart upload), so readers see it whole or not at all. Late requests of calls
that were given up are harmless to creates; a late plain put may replace a newer one, so names that are written twice
should have one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from verl_core.errors import ConfigError, ObjectExists, ObjectMissing, StorageError
from verl_core.types import BuildContext, Bytes, Capabilities, ObjectStat

from .deadline import MIB, Call, Limits, Waiter
from .objects import CREATED_BY_PROBE, Head, ObjectClient, ObjectConfig, Page
from .probe import Found, Probes
from .slots import Slots
from .transfer import Transfer

_PATH = attrgetter("path")
BATCH = 1000  # names of one listing page and of one delete request


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a storage and all its children share."""

    transfer: Transfer
    found: Callable[[], Found]  # by the probe, which runs once


def open_bucket(client: ObjectClient, config: ObjectConfig, context: BuildContext, place: str) -> ObjectStorage:
    """The storage at ``context.uri``. ``place`` tells apart what is probed once: endpoint and identity."""
    check_config(config)
    scheme, bucket, root = split_uri(context.uri)
    limits = Limits(config.timeout_s, config.attempts, config.alert_after_s, config.min_mib_per_s * MIB)
    transfer = Transfer(client, Waiter(limits, context.on_wait), Slots(context.max_concurrent_uploads), config.part_mib)
    uri = f"{scheme}://{bucket}" + (f"/{root}" if root else "")
    prefix = f"{root}/" if root else ""
    call = Call("probe", uri, remedy_of(scheme))
    probes = Probes(transfer, config, call, prefix)
    return ObjectStorage(uri, prefix, Bucket(transfer, lambda: probes.found(f"{place} {uri}")))


def check_config(config: ObjectConfig) -> None:
    """Raise ``ConfigError`` for values that no store can follow."""
    if min(config.timeout_s, config.alert_after_s, config.min_mib_per_s) <= 0:
        raise ConfigError("times and rates must be above 0", where="storage", remedy="correct the value")
    if not (config.attempts >= 1 and 5 <= config.part_mib <= 1024):
        remedy = "attempts: at least 1; part_mib: 5 to 1024"
        raise ConfigError("attempts or part_mib is out of range", where="storage", remedy=remedy)
    for key, value, known in (
        ("encryption", config.encryption, ("", "AES256", "aws:kms")),
        ("versioning", config.versioning, ("any", "on", "off")),
    ):
        if value not in known:
            remedy = "one of: " + ", ".join(repr(k) for k in known)
            raise ConfigError(f"{value!r} is unknown", where=f"storage.{key}", remedy=remedy)


def split_uri(uri: str) -> tuple[str, str, str]:
    """Scheme, bucket and root of ``scheme://bucket/root``. Raises ``ConfigError``."""
    scheme, separator, rest = uri.partition("://")
    bucket, _, root = rest.partition("/")
    root = root.strip("/")
    if not separator or not bucket or any(part in ("", ".", "..") for part in root.split("/") if root):
        raise ConfigError("not a place in a bucket", where=uri, remedy=f"give {scheme or 's3'}://BUCKET/FOLDER")
    return scheme, bucket, root


def remedy_of(scheme: str) -> str:
    return f"check that the {scheme} endpoint is up and reachable from this machine"


class ObjectStorage:
    """Objects below one prefix of a bucket."""

    def __init__(self, uri: str, prefix: str, bucket: Bucket) -> None:
        self.uri, self._prefix, self._bucket = uri, prefix, bucket
        self._transfer, self._client = bucket.transfer, bucket.transfer.client
        self._seen = False  # the bucket: a missing object there is just that

    def capabilities(self) -> Capabilities:
        """What the probe found; it runs with the first call, once a process."""
        found = self._bucket.found()
        return Capabilities(
            publish=False,
            append=False,
            conditional_put=found.conditional_put,
            lock=False,
            consistent_list=found.consistent_list,
            encryption=found.encryption,
            versioned=found.versioned,
        )

    def child(self, prefix: str) -> ObjectStorage:
        self._key(prefix)
        return ObjectStorage(f"{self.uri}/{prefix}", f"{self._prefix}{prefix}/", self._bucket)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        """A create on a store that ignores conditions looks first: safe for one committer alone."""
        key, call = self._key(path), self._call("put", path)
        if not if_absent:
            return self._transfer.upload(key, data, call, if_absent=False)
        found = self._bucket.found()
        if not found.conditional_put and self.stat(path) is not None:
            raise ObjectExists("put: it is there already", where=call.where)
        in_parts = found.conditional_multipart or not found.conditional_put
        return self._transfer.upload(key, data, call, if_absent=found.conditional_put, in_parts=in_parts)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            if self.stat(path) is None:
                raise ObjectMissing("get: no such object", where=f"{self.uri}/{path}")
            return b""
        return self._transfer.download(self._key(path), start, end, self._call("get", path))

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        folder = prefix.rstrip("/")
        below = f"{self._key(folder)}/" if folder else self._prefix
        found: list[ObjectStat] = []
        cut = len(self._prefix)
        for page in self._pages(below, self._call("list", folder)):
            found += [ObjectStat(s.path[cut:], s.size, s.mtime) for s in page.found]
        found.sort(key=_PATH)  # some servers put what is below "a/" before "a-b"
        return (stat for stat in found if f"/{CREATED_BY_PROBE}" not in f"/{stat.path}")

    def stat(self, path: str) -> ObjectStat | None:
        key, call = self._key(path), self._call("stat", path)

        async def look() -> Head | None:
            head = await self._client.head(key)
            if head is None and not self._seen:
                await self._client.check_bucket()  # the answer to a head has no room for a reason
            self._seen = True
            return head

        head = self._transfer.run(look, call, self._transfer.deadline())
        return None if head is None else ObjectStat(path, head.size, head.mtime)

    def delete(self, path: str) -> None:
        """An object, everything below a folder, and multipart uploads there that nobody finished."""
        key, call = self._key(path), self._call("delete", path)
        names = [key]
        for page in self._pages(f"{key}/", call):
            names += [stat.path for stat in page.found]
            while len(names) >= BATCH:
                self._delete(names[:BATCH], call)
                del names[:BATCH]
        self._delete(names, call)
        deadline = self._transfer.deadline()
        for upload in self._transfer.run(lambda: self._client.uploads(key), call, deadline):
            if upload.key == key or upload.key.startswith(f"{key}/"):
                self._abort(upload.key, upload.id, call)

    # --- steps -------------------------------------------------------------------------------

    def _pages(self, below: str, call: Call) -> Iterator[Page]:
        after = ""
        while True:
            page = self._page(below, after, call)
            yield page
            if not page.next:
                return
            after = page.next

    def _page(self, below: str, after: str, call: Call) -> Page:
        return self._transfer.run(lambda: self._client.page(below, after, BATCH), call, self._transfer.deadline())

    def _delete(self, names: Sequence[str], call: Call) -> None:
        if names:
            self._transfer.run(lambda: self._client.delete(names), call, self._transfer.deadline())

    def _abort(self, key: str, upload: str, call: Call) -> None:
        self._transfer.run(lambda: self._client.abort_upload(key, upload), call, self._transfer.deadline())

    def _call(self, operation: str, path: str) -> Call:
        return Call(operation, f"{self.uri}/{path}" if path else self.uri, remedy_of(self.uri.partition("://")[0]))

    def _key(self, path: str) -> str:
        if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise StorageError(f"{path!r} is not a path below this root", where=self.uri)
        return self._prefix + path
