"""The page on storage lists exactly the keys that the plugins have, with their defaults."""

from __future__ import annotations

import dataclasses
import json

from verl_core_storage.cos import CosConfig
from verl_core_storage.nfs import NfsConfig
from verl_core_storage.oss import OssConfig
from verl_core_storage.s3 import S3Config

from tests.support.docs import ROOT, code, tables

CONFIGS = {"s3": S3Config, "oss": OssConfig, "cos": CosConfig, "nfs": NfsConfig}


def test_the_page_has_every_key_of_every_storage_with_its_default() -> None:
    listed = set()
    for row in tables(ROOT / "docs/storage.md"):
        if len(row) == 4:
            plugins = CONFIGS if row[2] == "all" else [code(name.strip()) for name in row[2].split(",")]
            listed |= {(plugin, code(row[0]), code(row[1])) for plugin in plugins}
            assert row[3]
    fields = {(n, f.name, json.dumps(f.default)) for n, c in CONFIGS.items() for f in dataclasses.fields(c)}
    assert listed == fields
