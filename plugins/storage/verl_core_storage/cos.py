"""Storage on Tencent Cloud COS, through its S3 endpoint and s3fs.

Not through cosfs: it takes no headers for a put, so nothing can be created only if absent; it has no deadlines, and a
missing bucket looks like a missing object. The S3 endpoint is asked for both conditions, ``If-None-Match`` and COS's
own ``x-cos-forbid-overwrite`` (which versioned buckets ignore); the probe says what the bucket makes of them.

Credentials come from ``COS_SECRET_ID`` and ``COS_SECRET_KEY``, or from the AWS variables and profiles; the endpoint
from ``region``, or ``endpoint_url``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from verl_core.errors import ConfigError
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Storage
from verl_core.types import BuildContext

from .object_store import ObjectStorage
from .s3 import S3Config, build_s3

_FORBID = {"x-cos-forbid-overwrite": "true"}


@dataclass
class CosConfig(S3Config):
    """Keys of the ``storage`` block."""

    addressing_style: str = "virtual"
    checksums: str = "when_required"


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("cos", CosConfig, build_cos)


def build_cos(config: CosConfig, context: BuildContext) -> ObjectStorage:
    """Open ``cos://bucket-appid/folder``. No request is made before the first call."""
    endpoint, region = config.endpoint_url, config.region or os.environ.get("COS_REGION")
    if endpoint is None and region is None:
        remedy = "set storage.region (ap-guangzhou …) or COS_REGION, or storage.endpoint_url"
        raise ConfigError("the region of the bucket is missing", where=context.uri, remedy=remedy)
    access, secret = os.environ.get("COS_SECRET_ID"), os.environ.get("COS_SECRET_KEY")
    if config.access_key_id is None and access and secret:
        token = os.environ.get("COS_SESSION_TOKEN")
        config = replace(config, access_key_id=access, secret_access_key=secret, session_token=token)
    return build_s3(
        replace(config, endpoint_url=endpoint or f"https://cos.{region}.myqcloud.com", region=region or "us-east-1"),
        context,
        create_headers=_FORBID,
    )
