"""Storage on Alibaba Cloud OSS, through ossfs (its synchronous class: the asynchronous one lags behind aiohttp).

Credentials come from ``OSS_ACCESS_KEY_ID``, ``OSS_ACCESS_KEY_SECRET`` and ``OSS_SESSION_TOKEN``, the endpoint from
``OSS_ENDPOINT``; the keys of the ``storage`` block override them, best by ``${oc.env:…}``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from verl_core.errors import ConfigError
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Storage
from verl_core.types import BuildContext

from .object_store import ObjectStorage, open_bucket, split_uri
from .objects import ObjectConfig
from .oss_client import OssClient, OssOptions


@dataclass
class OssConfig(ObjectConfig):
    """Keys of the ``storage`` block."""

    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None


@hookimpl
def register_storages(register: Register[Storage]) -> None:
    register("oss", OssConfig, build_oss)


def build_oss(config: OssConfig, context: BuildContext) -> ObjectStorage:
    """Open ``oss://bucket/folder``. No request is made before the first call."""
    _, bucket, _ = split_uri(context.uri)
    endpoint = config.endpoint_url or os.environ.get("OSS_ENDPOINT")
    access = config.access_key_id or os.environ.get("OSS_ACCESS_KEY_ID")
    secret = config.secret_access_key or os.environ.get("OSS_ACCESS_KEY_SECRET")
    if not (endpoint and access and secret):
        remedy = "set OSS_ENDPOINT, OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET, or the keys of the storage block"
        raise ConfigError("endpoint or credentials are missing", where=context.uri, remedy=remedy)
    token = config.session_token or os.environ.get("OSS_SESSION_TOKEN")
    options = OssOptions(endpoint, access, secret, token, config.timeout_s, config.encryption, config.kms_key_id)
    return open_bucket(OssClient(bucket, options), config, context, f"{endpoint} {access}")
