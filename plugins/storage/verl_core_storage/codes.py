"""What the error codes of object stores mean: S3's, which the others share, and their HTTP statuses."""

from __future__ import annotations

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

from .attempts import Problem

_KEYS = "check access key, secret and region (AWS_* variables, AWS_PROFILE, or the storage block)"
_SICK = "look at the server: it is failing, or has no room left"
_RIGHTS = "give this user the rights to list, read, write and delete there"
_CODES: dict[str, tuple[type[StorageError], str]] = {
    "NoSuchKey": (ObjectMissing, ""),
    "NoSuchBucket": (StoreMissing, "make the bucket, or correct its name and the endpoint"),
    "PreconditionFailed": (ObjectExists, ""),
    "FileAlreadyExists": (ObjectExists, ""),
    "ConditionalRequestConflict": (StorageConflict, ""),
    "OperationAborted": (StorageConflict, ""),
    "NoSuchUpload": (StorageConflict, ""),
    "AccessDenied": (StorageDenied, _RIGHTS),
    "AllAccessDisabled": (StorageDenied, _RIGHTS),
    "InvalidAccessKeyId": (StorageDenied, _KEYS),
    "SignatureDoesNotMatch": (StorageDenied, _KEYS),
    "InvalidToken": (StorageDenied, "renew the credentials"),
    "ExpiredToken": (StorageDenied, "renew the credentials"),
    "TokenRefreshRequired": (StorageDenied, "renew the credentials"),
    "RequestTimeTooSkewed": (StorageDenied, "set this machine's clock (NTP): it differs from the server's"),
    "RequestExpired": (StorageDenied, "set this machine's clock (NTP): it differs from the server's"),
    "AuthorizationHeaderMalformed": (StorageDenied, _KEYS),
    "SlowDown": (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    "TooManyRequests": (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    "RequestLimitExceeded": (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    "ThrottlingException": (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    "RequestTimeout": (StorageTimeout, ""),
    "QuotaExceeded": (StorageFull, "make room, or raise the quota"),
    "InsufficientStorage": (StorageFull, "make room in the store"),
    "XMinioStorageFull": (StorageFull, "make room in the store"),
    "MethodNotAllowed": (StorageReadOnly, "use a bucket that can be written"),
    "InternalError": (StorageUnavailable, _SICK),
    "BadDigest": (StorageUnavailable, "the data was changed on its way: check the network"),
    "XAmzContentSHA256Mismatch": (StorageUnavailable, "the data was changed on its way: check the network"),
}
_STATUS: dict[int, tuple[type[StorageError], str]] = {
    401: (StorageDenied, _KEYS),
    403: (StorageDenied, f"{_KEYS}; {_RIGHTS}"),
    404: (ObjectMissing, ""),
    405: (StorageReadOnly, "use a bucket that can be written"),
    408: (StorageTimeout, ""),
    409: (StorageConflict, ""),
    412: (ObjectExists, ""),
    429: (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    503: (StorageThrottled, "lower storage.max_concurrent_uploads, or spread the load"),
    507: (StorageFull, "make room in the store"),
}


def code_problem(code: str, status: int, message: str, read: bool = False) -> Problem:
    """What an answer with this code and HTTP status means. ``read``: a condition failed because the object changed."""
    default = (StorageUnavailable, _SICK) if status >= 500 else (StorageError, "")
    kind, remedy = _CODES.get(code) or _STATUS.get(status) or default
    text = f"{code}: {message}" if code and not code.isdigit() else f"{status} {message}"
    if kind is ObjectExists:
        return Problem(StorageConflict, "it changed meanwhile") if read else Problem(kind, "it is there already")
    if kind is ObjectMissing:
        return Problem(kind, "no such object")
    return Problem(kind, text.strip(), remedy)
