"""The codes of object stores become errors of the tree, and no secret is in their text."""

from __future__ import annotations

import subprocess
import sys

import aiohttp
import oss2
import pytest
from botocore import exceptions as boto
from verl_core.errors import (
    ObjectExists,
    ObjectMissing,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageThrottled,
    StorageTimeout,
    StorageUnavailable,
    StoreMissing,
)
from verl_core.writes import TRANSIENT
from verl_core_storage.attempts import AGAIN
from verl_core_storage.codes import code_problem
from verl_core_storage.deadline import Call
from verl_core_storage.oss_client import OssClient, OssOptions
from verl_core_storage.s3_errors import RAW, s3_problem


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchKey", 404, ObjectMissing),
        ("404", 404, ObjectMissing),
        ("NoSuchBucket", 404, StoreMissing),
        ("PreconditionFailed", 412, ObjectExists),
        ("FileAlreadyExists", 409, ObjectExists),
        ("ConditionalRequestConflict", 409, StorageConflict),
        ("", 409, StorageConflict),
        ("AccessDenied", 403, StorageDenied),
        ("403", 403, StorageDenied),
        ("ExpiredToken", 400, StorageDenied),
        ("RequestTimeTooSkewed", 403, StorageDenied),
        ("SlowDown", 503, StorageThrottled),
        ("", 429, StorageThrottled),
        ("RequestTimeout", 400, StorageTimeout),
        ("InternalError", 500, StorageUnavailable),
        ("", 502, StorageUnavailable),
        ("", 504, StorageUnavailable),
        ("QuotaExceeded", 403, StorageFull),
        ("", 507, StorageFull),
        ("MethodNotAllowed", 405, StorageReadOnly),
        ("EntityTooLarge", 400, StorageError),
    ],
)
def test_each_code_has_its_kind_and_its_remedy(code: str, status: int, kind: type[StorageError]) -> None:
    problem = code_problem(code, status, "text of the server")
    assert problem.kind is kind
    error = problem.error(Call("put", "s3://runs/a", "check the endpoint"))
    assert (type(error), error.where) == (kind, "s3://runs/a")
    assert error.what.startswith("put: ")
    if kind not in (ObjectMissing, ObjectExists, StorageError):
        assert error.remedy


def test_what_a_client_tries_again_the_writer_tries_again_for_longer() -> None:
    assert set(AGAIN) <= set(TRANSIENT)


def test_what_is_no_answer_at_all_is_told_apart() -> None:
    for error, kind in (
        (boto.EndpointConnectionError(endpoint_url="http://u:pass@host"), StorageUnavailable),
        (boto.ConnectTimeoutError(endpoint_url="http://host"), StorageTimeout),
        (boto.ReadTimeoutError(endpoint_url="http://host"), StorageTimeout),
        (boto.ConnectionClosedError(endpoint_url="http://host"), StorageUnavailable),
        (boto.NoCredentialsError(), StorageDenied),
        (boto.ProfileNotFound(profile="p"), StorageDenied),
        (boto.ParamValidationError(report="bad"), StorageError),
        (aiohttp.ClientPayloadError("cut short"), StorageUnavailable),
        (ConnectionResetError(), StorageUnavailable),
    ):
        assert isinstance(error, RAW)
        problem = s3_problem(error, ["hidden"])
        assert problem.kind is kind, error
        assert "pass@" not in problem.text


def test_secrets_and_what_was_signed_are_never_shown() -> None:
    answer = {
        "Code": "SignatureDoesNotMatch",
        "Message": "you sent hidden",
        "StringToSign": "to-sign",
        "AWSAccessKeyId": "id",
    }
    raised = boto.ClientError({"Error": answer, "ResponseMetadata": {"HTTPStatusCode": 403}}, "PutObject")
    text = str(s3_problem(raised, ["hidden"]).error(Call("put", "s3://runs/a", "")))
    assert [w for w in ("hidden", "to-sign") if w in text] == []
    client = OssClient("runs", OssOptions("http://host", "id", "hidden"))
    details = {
        "Code": "SignatureDoesNotMatch",
        "Message": "you sent hidden",
        "StringToSign": "to-sign",
        "OSSAccessKeyId": "id",
    }
    wrong = oss2.exceptions.SignatureDoesNotMatch(403, {}, b"", details)
    text = str(client.explain(wrong).error(Call("put", "oss://runs/a", "")))
    assert [w for w in ("hidden", "to-sign") if w in text] == []
    assert "hidden" not in repr(OssOptions("http://host", "id", "hidden"))


# --- imports ----------------------------------------------------------------------------------

LIGHT = """
import sys
import verl_core, verl_core.cli.main, verl_core.api
from verl_core.plugins import discover, load
discover()
load(["local", "nfs"], defaults=False)
clients = {"s3fs", "fsspec", "aiobotocore", "botocore", "aiohttp", "ossfs", "oss2"}
print(sorted(clients & set(sys.modules)))
load(["s3"], defaults=False)
print(sorted({"ossfs", "oss2", "torch"} & set(sys.modules)), "s3fs" in sys.modules)
"""


def test_a_client_is_imported_only_with_the_plugin_that_needs_it() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["[]", "[] True"], done.stderr
