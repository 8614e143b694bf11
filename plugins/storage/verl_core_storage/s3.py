"""Storage on S3 and on servers that speak its protocol, through s3fs.

Credentials come by the usual chain (``AWS_*`` variables, profiles, the instance's role), the endpoint from
``AWS_ENDPOINT_URL``; the keys of the ``storage`` block override them, best by ``${oc.env:…}``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Storage
from verl_core.types import BuildContext

from .object_store import ObjectStorage, open_bucket, split_uri
from .objects import ObjectConfig
from .s3_client import S3Client, S3Options

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class S3Config(ObjectConfig):
    """Keys of the ``storage`` block."""

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    addressing_style: str = "auto"  # auto | path | virtual
    checksums: str = "when_supported"  # when_supported | when_required: older servers refuse trailing checksums


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("s3", S3Config, build_s3)


def build_s3(config: S3Config, context: BuildContext, create_headers: Mapping[str, str] | None = None) -> ObjectStorage:
    """Open ``s3://bucket/folder``. No request is made before the first call."""
    _, bucket, _ = split_uri(context.uri)
    options = S3Options(
        endpoint_url=config.endpoint_url,
        region=config.region,
        profile=config.profile,
        access_key_id=config.access_key_id,
        secret_access_key=config.secret_access_key,
        session_token=config.session_token,
        addressing_style=config.addressing_style,
        checksums=config.checksums,
        timeout_s=config.timeout_s,
        encryption=config.encryption,
        kms_key_id=config.kms_key_id,
        create_headers=dict(create_headers or {}),
    )
    client = S3Client(bucket, options)
    return open_bucket(client, config, context, client.identity())
