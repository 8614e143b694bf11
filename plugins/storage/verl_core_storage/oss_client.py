"""The requests of one OSS bucket. ossfs makes the bucket (signing, endpoint), its SDK speaks, in threads that a hung
server can keep while whoever waits for them goes on."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import oss2
import requests
import urllib3
from ossfs import OSSFileSystem
from verl_core.errors import StorageDenied, StorageThrottled, StorageUnavailable
from verl_core.types import ObjectStat

from .attempts import Problem
from .codes import code_problem
from .objects import Head, Page, Piece, Upload
from .threads import Threads

T = TypeVar("T")
_POOL = 64
_MARK = "verl-core-create"
_ENCRYPTION = {"AES256": "AES256", "aws:kms": "KMS"}
_CONNECT_S = 10.0
_OWN: dict[str, Problem] = {
    "QpsLimitExceeded": Problem(StorageThrottled, "", "lower storage.max_concurrent_uploads, or spread the load"),
    "UserDisable": Problem(StorageDenied, "", "the account is disabled: look at its bills"),
    "InvalidDigest": Problem(StorageUnavailable, "", "the data was changed on its way: check the network"),
}


@dataclass(frozen=True, slots=True)
class OssOptions:
    endpoint: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    encryption: str = ""
    kms_key_id: str | None = None


class OssClient:
    """An ``ObjectClient``. Creates are refused by ``x-oss-forbid-overwrite``, which versioned buckets ignore."""

    raw: tuple[type[Exception], ...] = (
        oss2.exceptions.OssError, requests.RequestException, urllib3.exceptions.HTTPError, OSError, RuntimeError,
    )  # fmt: skip
    max_single_put = 5 << 30

    def __init__(self, bucket: str, options: OssOptions) -> None:
        self._name, self._options, self._threads = bucket, options, Threads(_POOL)
        self._pid = 0
        self._bucket: Any = None  # connections are not shared with forked children

    def explain(self, error: Exception) -> Problem:
        """Only code and message are shown: the other fields repeat the key and what was signed."""
        o = self._options
        hidden = [secret for secret in (o.secret_access_key, o.session_token) if secret]
        if not isinstance(error, oss2.exceptions.OssError) or error.status < 0:
            # the SDK wraps what its connection raised
            return Problem(StorageUnavailable, _without(f"{type(error).__name__}: {_reason(error)}", hidden))
        found, text = _OWN.get(error.code), _without(str(error.message), hidden)
        if found is not None:
            return Problem(found.kind, f"{error.code}: {text}", found.remedy)
        return code_problem(str(error.code), int(error.status), text, read=str(error.code) == "PreconditionFailed")

    # --- objects -----------------------------------------------------------------------------

    async def put(self, key: str, data: bytes, *, if_absent: bool, mark: str = "") -> None:
        headers = {"Content-MD5": _md5(data), **self._encryption(), **_create(if_absent), **_marked(mark)}
        await self._do(lambda bucket: bucket.put_object(key, data, headers=headers))

    async def get(
        self, key: str, start: int, end: int, tag: str = "", arrives: Callable[[int], None] = lambda size: None
    ) -> Piece | None:
        # "standard": beyond the end is an error, and not the whole object
        headers = {"x-oss-range-behavior": "standard", **({"If-Match": tag} if tag else {})}
        try:
            answer = await self._do(lambda b: b.get_object(key, byte_range=(start, end - 1), headers=headers))
        except oss2.exceptions.ServerError as error:
            if error.status == 416:
                return None
            raise
        arrives(int(answer.headers.get("Content-Length", 0)))
        data: bytes = await self._do(lambda _: answer.read())
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
        return Piece(data, int(whole) if whole.isdigit() else len(data), answer.headers.get("ETag", ""))

    async def head(self, key: str) -> Head | None:
        try:
            answer = await self._do(lambda bucket: bucket.head_object(key))
        except oss2.exceptions.NotFound:
            return None
        given = answer.headers.get("x-oss-server-side-encryption", "")
        encryption = next((name for name, theirs in _ENCRYPTION.items() if theirs == given), "")
        mark = answer.headers.get(f"x-oss-meta-{_MARK}", "")
        return Head(int(answer.headers["Content-Length"]), float(answer.last_modified), encryption, mark)

    async def check_bucket(self) -> None:
        await self._do(lambda bucket: bucket.list_objects_v2(max_keys=1))

    async def page(self, prefix: str, after: str, limit: int = 1000) -> Page:
        answer = await self._do(
            lambda bucket: bucket.list_objects_v2(prefix=prefix, continuation_token=after, max_keys=limit)
        )
        found = [ObjectStat(o.key, int(o.size), float(o.last_modified)) for o in answer.object_list]
        return Page(found, answer.next_continuation_token if answer.is_truncated else "")

    async def delete(self, keys: Sequence[str]) -> None:
        await self._do(lambda bucket: bucket.batch_delete_objects(list(keys)))

    # --- multipart uploads -------------------------------------------------------------------

    async def begin_upload(self, key: str, mark: str = "") -> str:
        headers = {**self._encryption(), **_marked(mark)}
        answer = await self._do(lambda bucket: bucket.init_multipart_upload(key, headers=headers))
        return str(answer.upload_id)

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> str:
        headers = {"Content-MD5": _md5(data)}
        answer = await self._do(lambda bucket: bucket.upload_part(key, upload, number, data, headers=headers))
        return str(answer.etag)

    async def finish_upload(self, key: str, upload: str, tags: Sequence[str], *, if_absent: bool) -> None:
        parts = [oss2.models.PartInfo(number, tag) for number, tag in enumerate(tags, 1)]
        headers = _create(if_absent)
        await self._do(lambda bucket: bucket.complete_multipart_upload(key, upload, parts, headers=headers))

    async def abort_upload(self, key: str, upload: str) -> None:
        try:
            await self._do(lambda bucket: bucket.abort_multipart_upload(key, upload))
        except oss2.exceptions.NoSuchUpload:
            return

    async def uploads(self, prefix: str) -> Sequence[Upload]:
        answer = await self._do(lambda bucket: bucket.list_multipart_uploads(prefix=prefix))
        now = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        return [Upload(u.key, u.upload_id, now - float(u.initiation_date)) for u in answer.upload_list]

    async def versioning(self) -> bool:
        answer = await self._do(lambda bucket: bucket.get_bucket_versioning())
        return bool(answer.status)  # "Suspended" ignores creates as well

    # --- threads -----------------------------------------------------------------------------

    async def _do(self, work: Callable[[Any], T]) -> T:
        if self._bucket is None or self._pid != os.getpid():
            self._bucket, self._pid = self._open(), os.getpid()
        bucket = self._bucket
        return await asyncio.wrap_future(self._threads.start(lambda: work(bucket), self._name))

    def _open(self) -> Any:
        o = self._options
        files = OSSFileSystem(
            endpoint=o.endpoint,
            key=o.access_key_id,
            secret=o.secret_access_key,
            token=o.session_token,
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        files._session = oss2.Session(pool_size=_POOL)
        times: Any = (min(_CONNECT_S, o.timeout_s), o.timeout_s)  # to connect, and between two bytes
        bucket = files._get_bucket(self._name, connect_timeout=times)
        bucket.enable_crc = False  # in pure Python it is slower than a network: MD5 goes up, contents are hashed above
        return bucket

    def _encryption(self) -> dict[str, str]:
        o = self._options
        if not o.encryption:
            return {}
        kms = {"x-oss-server-side-encryption-key-id": o.kms_key_id} if o.kms_key_id else {}
        return {"x-oss-server-side-encryption": _ENCRYPTION[o.encryption], **kms}


def _create(if_absent: bool) -> dict[str, str]:
    return {"x-oss-forbid-overwrite": "true"} if if_absent else {}


def _marked(mark: str) -> Mapping[str, str]:
    return {f"x-oss-meta-{_MARK}": mark} if mark else {}


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _reason(error: Exception) -> str:
    inner = getattr(error, "exception", None) or error.__cause__ or error
    return " ".join(str(inner).split())
