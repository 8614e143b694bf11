"""What the errors of S3 servers and of their client mean. Only code and message are shown: other fields of an answer
may repeat keys and signatures."""

from __future__ import annotations

import re
from collections.abc import Collection

import aiohttp
from botocore import exceptions as boto
from verl_core.errors import StorageDenied, StorageError, StorageTimeout, StorageUnavailable

from .attempts import Problem
from .codes import code_problem

RAW = (boto.BotoCoreError, boto.ClientError, boto.HTTPClientError, aiohttp.ClientError, OSError, EOFError)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
    boto.SSOTokenLoadError,
    boto.ProfileNotFound,
)
_BROKEN = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.ResponseStreamingError,
    boto.IncompleteReadError,
    boto.FlexibleChecksumError,
    aiohttp.ClientError,
    OSError,
    EOFError,
)
_USER = re.compile(r"(://)[^/@\s]+@")


def s3_problem(error: Exception, secrets: Collection[str] = ()) -> Problem:
    """What an error of botocore, aiohttp or the socket means."""
    if isinstance(error, boto.ClientError):
        answer, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        status = int(meta.get("HTTPStatusCode", 0))
        text = _plain(str(answer.get("Message", "")), secrets)
        return code_problem(str(answer.get("Code", "")), status, text, error.operation_name == "GetObject")
    text = _plain(f"{type(error).__name__}: {' '.join(str(error).split())}", secrets)
    if isinstance(error, _NO_CREDENTIALS):
        return Problem(StorageDenied, text, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")
    if isinstance(error, boto.ConnectTimeoutError | boto.ReadTimeoutError | TimeoutError):
        return Problem(StorageTimeout, text)
    if isinstance(error, _BROKEN):
        return Problem(StorageUnavailable, text)
    return Problem(StorageError, text, "check endpoint, region and addressing style of the storage block")


def _plain(text: str, secrets: Collection[str]) -> str:
    """Without anything that opens a door."""
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    return _USER.sub(r"\1***@", text)
