"""A fixture, not OSS: a small server that speaks as much of the OSS protocol as a storage needs.

It checks V1 signatures, content hashes and clocks as the real one does, and keeps objects in memory. There is no OSS
emulator to be had; what the real service does beyond this is not tested.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.server
import re
import threading
import time
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

ACCESS, SECRET = "oss-access", "oss-secret-0123456789"
SIGNED_QUERY = {
    "acl", "append", "continuation-token", "delete", "location", "partNumber", "position", "security-token", "uploadId",
    "uploads", "versioning", "bucketInfo", "objectMeta",
}  # fmt: skip
SKEW_S = 900.0
KEPT_HEADERS = ("x-oss-server-side-encryption", "x-oss-server-side-encryption-key-id")


@dataclass
class Stored:
    data: bytes
    headers: dict[str, str]
    at: float = field(default_factory=time.time)

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest().upper()}"'


@dataclass
class Bucket:
    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes], dict[str, str], float]] = field(default_factory=dict)
    versioned: bool = False  # the real service ignores forbid-overwrite then
    encrypts: bool = True


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


class OssServer:
    """``fail`` = (status, code): every request is answered so; ``writes_fail`` the same for changes; ``hold_s``: each
    request takes so long; ``hung``: none is answered; ``clock_s``: by how much the server's clock is ahead."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {"runs": Bucket()}
        self.fail: tuple[int, str] | None = None
        self.writes_fail: tuple[int, str] | None = None
        self.hold_s, self.hung, self.clock_s = 0.0, False, 0.0
        self.mutex = threading.RLock()
        self.uploading = self.most_uploading = 0
        server = self

        class Handler(_Handler):
            oss = server

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, name="oss-server", daemon=True).start()

    def close(self) -> None:
        self.hung = False
        self._http.shutdown()
        self._http.server_close()

    def options(self) -> dict[str, object]:
        """Of a client."""
        return {"endpoint_url": self.endpoint, "access_key_id": ACCESS, "secret_access_key": SECRET}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    oss: OssServer

    def log_message(self, *_: object) -> None: ...

    def _serve(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        bucket, _, key = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.oss.mutex:
            self.oss.uploading += self.command == "PUT"
            self.oss.most_uploading = max(self.oss.most_uploading, self.oss.uploading)
        try:
            time.sleep(self.oss.hold_s)
            while self.oss.hung:
                time.sleep(0.05)
            self._check(bucket, key, query, body)
            with self.oss.mutex:
                answer = self._answer(bucket, key, query, body)
        except Refused as refused:
            text = f"<Error><Code>{refused.code}</Code><Message>{escape(refused.message)}</Message>"
            text += f"<OSSAccessKeyId>{ACCESS}</OSSAccessKeyId><StringToSign>{SECRET}</StringToSign></Error>"
            answer = (refused.status, text.encode(), {})
        finally:
            with self.oss.mutex:
                self.oss.uploading -= self.command == "PUT"
        self._send(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        sent = {"x-oss-request-id": uuid.uuid4().hex, **headers}
        sent.setdefault("Content-Length", str(len(body)))
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # --- what is refused ---------------------------------------------------------------------

    def _check(self, bucket: str, key: str, query: Mapping[str, str], body: bytes) -> None:
        scheme, _, given = self.headers.get("authorization", "").partition(" ")
        access, _, signature = given.partition(":")
        if scheme != "OSS" or access != ACCESS:
            raise Refused(403, "InvalidAccessKeyId", "The OSS Access Key Id you provided does not exist.")
        if not hmac.compare_digest(signature, self._signature(bucket, key, query)):
            raise Refused(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
        sent = email.utils.parsedate_to_datetime(self.headers["date"]).timestamp()
        if abs(sent - time.time() - self.oss.clock_s) > SKEW_S:
            raise Refused(403, "RequestTimeTooSkewed", "The difference between the request time and ours is too large.")
        digest = self.headers.get("content-md5")
        if digest and base64.b64encode(hashlib.md5(body).digest()).decode() != digest:
            raise Refused(400, "InvalidDigest", "The Content-MD5 you specified was invalid.")
        failing = self.oss.fail or (self.oss.writes_fail if self.command in ("PUT", "POST", "DELETE") else None)
        if failing is not None:
            raise Refused(*failing, "as the test wants it")
        if bucket not in self.oss.buckets:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")

    def _signature(self, bucket: str, key: str, query: Mapping[str, str]) -> str:
        own = sorted((n.lower(), v) for n, v in self.headers.items() if n.lower().startswith("x-oss-"))
        signed = [f"{n}={v}" if v else n for n, v in sorted(query.items()) if n in SIGNED_QUERY]
        resource = f"/{bucket}/{key}" + ("?" + "&".join(signed) if signed else "")
        plain = [self.command, *(self.headers.get(n, "") for n in ("content-md5", "content-type", "date"))]
        text = "\n".join([*plain, *(f"{n}:{v}" for n, v in own), resource])
        return base64.b64encode(hmac.new(SECRET.encode(), text.encode(), hashlib.sha1).digest()).decode()

    # --- what is answered --------------------------------------------------------------------

    def _answer(self, name: str, key: str, query: Mapping[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        bucket = self.oss.buckets[name]
        if not key:
            return 200, self._of_bucket(bucket, query, body).encode(), {}
        if "uploads" in query or "uploadId" in query:
            return self._of_upload(bucket, key, query, body)
        if self.command == "PUT":
            return 200, b"", {"ETag": self._store(bucket, key, body, self._kept(bucket)).tag}
        if self.command == "DELETE":
            bucket.objects.pop(key, None)
            return 204, b"", {}
        if key not in bucket.objects:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        return self._read(bucket.objects[key])

    def _read(self, stored: Stored) -> tuple[int, bytes, dict[str, str]]:
        headers = {
            "ETag": stored.tag,
            "Last-Modified": email.utils.formatdate(stored.at, usegmt=True),
            **stored.headers,
        }
        if self.command == "HEAD":
            return 200, b"", {**headers, "Content-Length": str(len(stored.data))}
        if self.headers.get("if-match", stored.tag) != stored.tag:
            raise Refused(412, "PreconditionFailed")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted is None:
            return 200, stored.data, headers
        start, size = int(wanted[1]), len(stored.data)
        end = min(int(wanted[2] or size - 1), size - 1)
        if start > end:
            raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")
        return 206, stored.data[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{size}"}

    def _kept(self, bucket: Bucket) -> dict[str, str]:
        names = KEPT_HEADERS if bucket.encrypts else ()
        return {
            n.lower(): v for n, v in self.headers.items() if n.lower().startswith("x-oss-meta-") or n.lower() in names
        }

    def _store(self, bucket: Bucket, key: str, data: bytes, headers: dict[str, str]) -> Stored:
        forbidden = self.headers.get("x-oss-forbid-overwrite") == "true" and not bucket.versioned
        if forbidden and key in bucket.objects:
            raise Refused(409, "FileAlreadyExists", "The object you specified already exists.")
        bucket.objects[key] = Stored(data, headers)
        return bucket.objects[key]

    def _of_bucket(self, bucket: Bucket, query: Mapping[str, str], body: bytes) -> str:
        if "versioning" in query:
            status = "<Status>Enabled</Status>" if bucket.versioned else ""
            return f"<VersioningConfiguration>{status}</VersioningConfiguration>"
        if "delete" in query:
            for node in ET.fromstring(body).iter("Key"):
                bucket.objects.pop(urllib.parse.unquote(node.text or ""), None)
                bucket.objects.pop(node.text or "", None)
            return "<DeleteResult></DeleteResult>"
        if "uploads" in query:
            found = "".join(
                f"<Upload><Key>{urllib.parse.quote(k)}</Key><UploadId>{i}</UploadId><Initiated>{_iso(at)}</Initiated></Upload>"
                for i, (k, _, _, at) in bucket.uploads.items()
                if k.startswith(query.get("prefix", ""))
            )
            head = (
                "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><NextKeyMarker/><NextUploadIdMarker/>"
            )
            return f"<ListMultipartUploadsResult>{head}{found}</ListMultipartUploadsResult>"
        return self._listing(bucket, query)

    def _listing(self, bucket: Bucket, query: Mapping[str, str]) -> str:
        after = query.get("continuation-token") or query.get("start-after", "")
        names = sorted(k for k in bucket.objects if k.startswith(query.get("prefix", "")) and k > after)
        limit = int(query.get("max-keys", 100))
        found, more = names[:limit], len(names) > limit
        text = "".join(
            f"<Contents><Key>{urllib.parse.quote(k)}</Key><LastModified>{_iso(bucket.objects[k].at)}</LastModified>"
            f"<ETag>{escape(bucket.objects[k].tag)}</ETag><Type>Normal</Type><Size>{len(bucket.objects[k].data)}</Size>"
            "<StorageClass>Standard</StorageClass></Contents>"
            for k in found
        )
        token = f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>" if more else ""
        head = f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
        return f"<ListBucketResult>{head}{token}{text}</ListBucketResult>"

    def _of_upload(
        self, bucket: Bucket, key: str, query: Mapping[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if "uploads" in query:
            new = uuid.uuid4().hex
            bucket.uploads[new] = (key, {}, self._kept(bucket), time.time())
            text = f"<InitiateMultipartUploadResult><Key>{escape(key)}</Key><UploadId>{new}</UploadId>"
            return 200, f"{text}</InitiateMultipartUploadResult>".encode(), {}
        if query["uploadId"] not in bucket.uploads:
            raise Refused(404, "NoSuchUpload", "The specified upload does not exist.")
        _, parts, headers, _ = bucket.uploads[query["uploadId"]]
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            return 200, b"", {"ETag": Stored(body, {}).tag}
        if self.command == "POST":
            self._store(bucket, key, b"".join(parts[n] for n in sorted(parts)), headers)
        del bucket.uploads[query["uploadId"]]
        done = "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>" if self.command == "POST" else ""
        return 200 if done else 204, done.encode(), {"ETag": bucket.objects[key].tag} if done else {}


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))
