"""The requests of one S3 bucket. s3fs makes the session (credentials, endpoint, connection pool), botocore speaks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import s3fs
from verl_core.types import ObjectStat

from .attempts import Problem
from .objects import Head, Page, Piece, Upload
from .s3_errors import RAW, s3_problem

_POOL = 64  # connections
_CONNECT_S = 10.0
_MARK = "verl-core-create"  # in the metadata of objects
_ASK_FIRST = 1 << 20  # bytes; a smaller body is sent at once, a larger one after the server's word (100-continue)


@dataclass(frozen=True, slots=True)
class S3Options:
    """How to reach a server; None leaves it to the AWS variables and profiles."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    addressing_style: str = "auto"
    checksums: str = "when_supported"
    timeout_s: float = 60.0
    encryption: str = ""
    kms_key_id: str | None = None
    create_headers: Mapping[str, str] = field(default_factory=dict)  # sent with creates, beside If-None-Match


class S3Client:
    """An ``ObjectClient``."""

    raw: tuple[type[Exception], ...] = RAW
    max_single_put = 5 << 30

    def __init__(self, bucket: str, options: S3Options) -> None:
        self._bucket, self._options = bucket, options
        self._pid = 0
        self._fs: Any = None  # s3fs is not fork-safe: each process makes its own

    def identity(self) -> str:
        """Endpoint and user, as far as they are known before the first request; no secret."""
        o, env = self._options, os.environ
        endpoint = o.endpoint_url or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", "")
        user = o.access_key_id or o.profile or env.get("AWS_ACCESS_KEY_ID") or env.get("AWS_PROFILE", "")
        return f"{endpoint} {user}"

    def explain(self, error: Exception) -> Problem:
        o = self._options
        return s3_problem(error, [s for s in (o.secret_access_key, o.session_token) if s])

    # --- objects -----------------------------------------------------------------------------

    async def put(self, key: str, data: bytes, *, if_absent: bool, mark: str = "") -> None:
        await (await self._api()).put_object(
            Bucket=self._bucket, Key=key, Body=data, **self._encryption(), **_marked(mark), **_create(if_absent)
        )

    async def get(
        self, key: str, start: int, end: int, tag: str = "", arrives: Callable[[int], None] = lambda size: None
    ) -> Piece | None:
        wanted = {"IfMatch": tag} if tag else {}
        api = await self._api()
        try:
            answer = await api.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}", **wanted)
        except api.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("InvalidRange", "416"):
                return None
            raise
        arrives(answer["ContentLength"])
        async with answer["Body"] as body:
            data = await body.read()
        whole = answer.get("ContentRange", "").rpartition("/")[2]
        if not whole.isdigit():  # the server ignored the range
            whole, data = str(len(data)), data[start:end]
        return Piece(data, int(whole), answer.get("ETag", ""))

    async def head(self, key: str) -> Head | None:
        api = await self._api()
        try:
            answer = await api.head_object(Bucket=self._bucket, Key=key)
        except api.exceptions.ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 404:
                return None
            raise
        modified: datetime = answer["LastModified"]
        mark = str(answer.get("Metadata", {}).get(_MARK, ""))
        return Head(answer["ContentLength"], modified.timestamp(), answer.get("ServerSideEncryption", ""), mark)

    async def check_bucket(self) -> None:
        await (await self._api()).list_objects_v2(Bucket=self._bucket, MaxKeys=1)  # a head would not say why

    async def page(self, prefix: str, after: str, limit: int = 1000) -> Page:
        more = {"ContinuationToken": after} if after else {}
        answer = await (await self._api()).list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=limit, **more)
        found = [ObjectStat(o["Key"], o["Size"], o["LastModified"].timestamp()) for o in answer.get("Contents", ())]
        return Page(found, answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else "")

    async def delete(self, keys: Sequence[str]) -> None:
        api = await self._api()
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await api.delete_objects(Bucket=self._bucket, Delete=wanted)
        for error in answer.get("Errors", ()):
            if error.get("Code") != "NoSuchKey":
                raise api.exceptions.ClientError({"Error": error, "ResponseMetadata": {}}, "DeleteObjects")

    # --- multipart uploads -------------------------------------------------------------------

    async def begin_upload(self, key: str, mark: str = "") -> str:
        api = await self._api()
        answer = await api.create_multipart_upload(Bucket=self._bucket, Key=key, **self._encryption(), **_marked(mark))
        return str(answer["UploadId"])

    async def put_part(self, key: str, upload: str, number: int, data: bytes) -> str:
        api = await self._api()
        answer = await api.upload_part(Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)
        return str(answer["ETag"])

    async def finish_upload(self, key: str, upload: str, tags: Sequence[str], *, if_absent: bool) -> None:
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        await (await self._api()).complete_multipart_upload(
            Bucket=self._bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **_create(if_absent)
        )

    async def abort_upload(self, key: str, upload: str) -> None:
        api = await self._api()
        try:
            await api.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except api.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") != "NoSuchUpload":
                raise

    async def uploads(self, prefix: str) -> Sequence[Upload]:
        api = await self._api()
        try:
            answer = await api.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix)
        except api.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchUpload":  # some servers say none in this way
                return ()
            raise
        now = _now(answer)
        return [
            Upload(u["Key"], u["UploadId"], (now - u["Initiated"]).total_seconds()) for u in answer.get("Uploads", ())
        ]

    async def versioning(self) -> bool:
        answer = await (await self._api()).get_bucket_versioning(Bucket=self._bucket)
        return str(answer.get("Status")) == "Enabled"

    # --- session -----------------------------------------------------------------------------

    async def _api(self) -> Any:
        """The botocore client of this process."""
        if self._fs is None or self._pid != os.getpid():
            self._fs, self._pid = self._open(), os.getpid()
        api = await self._fs.set_session()
        api.meta.events.register_last("before-call.s3", self._prepare, unique_id="verl-core")
        return api

    def _prepare(self, params: dict[str, Any], **_: object) -> None:
        """Before a request is signed. Servers with a condition of their own get it beside the standard one."""
        headers, body = params["headers"], params.get("body")
        if "If-None-Match" in headers:
            headers.update(self._options.create_headers)
        if isinstance(body, BytesIO) and len(body.getbuffer()) < _ASK_FIRST:
            headers.pop("Expect", None)  # else each small object would take two round trips

    def _open(self) -> Any:
        o = self._options
        session: dict[str, Any] = {"profile": o.profile} if o.profile else {}
        return s3fs.S3FileSystem(
            key=o.access_key_id,
            secret=o.secret_access_key,
            token=o.session_token,
            endpoint_url=o.endpoint_url,
            skip_instance_cache=True,
            use_listings_cache=False,
            client_kwargs={"region_name": o.region} if o.region else {},
            config_kwargs={
                "connect_timeout": min(_CONNECT_S, o.timeout_s),
                "read_timeout": o.timeout_s,
                "max_pool_connections": _POOL,
                "retries": {"total_max_attempts": 1, "mode": "standard"},  # retries are ours, under one deadline
                "request_checksum_calculation": o.checksums,
                "response_checksum_validation": o.checksums,
                "s3": {"addressing_style": o.addressing_style},
            },
            **session,
        )

    def _encryption(self) -> dict[str, str]:
        o = self._options
        kms = {"SSEKMSKeyId": o.kms_key_id} if o.kms_key_id else {}
        return {"ServerSideEncryption": o.encryption, **kms} if o.encryption else {}


def _marked(mark: str) -> dict[str, dict[str, str]]:
    return {"Metadata": {_MARK: mark}} if mark else {}


def _create(if_absent: bool) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if if_absent else {}


def _now(answer: Mapping[str, Any]) -> datetime:
    """The server's clock, from its answer."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date) if date else datetime.now(UTC)
