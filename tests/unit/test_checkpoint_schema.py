"""The schema lock: what this version wrote it reads, anything else is refused with the reason."""

from __future__ import annotations

from dataclasses import make_dataclass

import orjson
import pytest
from verl_core.checkpoint.schema import check, schema_version, signature
from verl_core.errors import RunMismatch
from verl_core.types import BatchRef


def changed(**fields: object) -> bytes:
    return orjson.dumps({**orjson.loads(schema_version()), **fields})


def test_the_own_schema_is_accepted_whatever_the_code_version() -> None:
    check(schema_version())
    check(changed(code_version="0.0.1"))


def test_another_format_or_record_is_refused_by_name() -> None:
    classes = orjson.loads(schema_version())["classes"]
    with pytest.raises(RunMismatch, match="format 7 is not known here"):
        check(changed(format=7))
    with pytest.raises(RunMismatch, match="another shape: BatchRef"):
        check(changed(classes={**classes, "BatchRef": "blake3:other"}))
    with pytest.raises(RunMismatch, match=r"another shape: Extra — use verl-core"):
        check(changed(classes={**classes, "Extra": "blake3:other"}))


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"format":1}'])
def test_what_is_no_schema_is_refused(damage: bytes) -> None:
    with pytest.raises(RunMismatch, match="not a schema"):
        check(damage)


def test_a_signature_changes_with_name_type_and_order_of_fields() -> None:
    shapes = ([("a", int), ("b", str)], [("a", int), ("c", str)], [("a", str), ("b", str)], [("b", str), ("a", int)])
    assert len({signature(make_dataclass("R", shape)) for shape in shapes}) == 4
    assert signature(BatchRef) == signature(BatchRef)
