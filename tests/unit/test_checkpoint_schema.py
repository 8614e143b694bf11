"""The schema lock: what is stored cannot change unnoticed; what this version wrote it reads, anything else is refused
with the reason."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from pathlib import Path

import orjson
import pytest
from verl_core.checkpoint import schema
from verl_core.checkpoint.migrations import STEPS, Migration, Refusal
from verl_core.checkpoint.schema import SCHEMA, number_of, schema_version, signature, upgraded
from verl_core.errors import RunMismatch
from verl_core.types import BatchRef, Slice, TensorChunk

from tests.support import light, released

CHANGED = """\
{what} is not what schema {number} says. When schema {number} was released: raise SCHEMA in checkpoint/schema.py, and
add a step to checkpoint/migrations that reads the old one, or refuses it with the reason. When it was not: a run of
`python -m tests.support.released` writes it down anew."""


def changed(**fields: object) -> bytes:
    return orjson.dumps({**orjson.loads(schema_version()), **fields})


# --- today's schema is frozen ----------------------------------------------------------------


def test_no_stored_record_changes_without_a_migration_or_a_refusal() -> None:
    today, kept = orjson.loads(schema_version()), orjson.loads((released.SIGNATURES / f"{SCHEMA}.json").read_bytes())
    for part in ("schema", "format", "classes"):
        assert today[part] == kept[part], CHANGED.format(what=f"{part} of schema_version.json", number=SCHEMA)


def test_no_stored_file_changes_without_a_migration_or_a_refusal(tmp_path: Path) -> None:
    light.run(tmp_path / "run", released.STEPS, until=released.UNTIL, changes=[released.KEEP])
    found = released.shapes(tmp_path / "run")
    kept = json.loads((released.DATA / str(SCHEMA) / "shapes.json").read_text())
    differing = sorted(name for name in found.keys() | kept.keys() if found.get(name) != kept.get(name))
    assert differing == [], CHANGED.format(what=", ".join(differing), number=SCHEMA)


def test_every_schema_before_todays_has_its_step_its_signatures_and_its_run() -> None:
    numbers = range(1, SCHEMA)
    assert sorted(STEPS) == [*numbers]
    for number in numbers:
        assert schema.known(number).number == number
        assert (released.DATA / str(number) / "run/state_log.jsonl").exists()
        step = STEPS[number]
        assert step.reason
        assert isinstance(step, Migration) or step.remedy


# --- what is read, and what is refused -------------------------------------------------------


def test_the_own_schema_is_accepted_whatever_the_code_version() -> None:
    assert number_of(schema_version()) == SCHEMA
    assert number_of(changed(code_version="0.0.1")) == SCHEMA


def test_a_newer_schema_is_refused_with_the_version_that_wrote_it() -> None:
    newer = changed(schema=SCHEMA + 1, code_version="9.1.0")
    with pytest.raises(RunMismatch) as caught:
        number_of(newer, where="step_000004/schema_version.json")
    text = f"schema {SCHEMA + 1} is newer than schema {SCHEMA}, the newest that verl-core"
    assert str(caught.value).startswith(f"step_000004/schema_version.json: {text}")
    assert caught.value.remedy == "use verl-core 9.1.0, which wrote it, or a later version"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_no_schema_has_is_refused(number: int) -> None:
    with pytest.raises(RunMismatch):
        number_of(changed(schema=number))


def test_another_format_or_record_is_refused_by_name() -> None:
    classes = orjson.loads(schema_version())["classes"]
    fields = classes["BatchRef"]
    with pytest.raises(RunMismatch, match="format 7 is not known here"):
        number_of(changed(format=7))
    for other, said in (
        ({**classes, "BatchRef": [*fields[:-1], "rows: int"]}, r"BatchRef \(rows: int, prompt_rows: tuple"),
        ({**classes, "BatchRef": fields[::-1]}, r"BatchRef \(in another order\)"),
        ({**classes, "Extra": ["a: int"]}, r"Extra \(only there\) — use verl-core"),
        ({n: f for n, f in classes.items() if n != "BatchRef"}, r"BatchRef \(only here\)"),
        ({**classes, "BatchRef": "blake3:other"}, "BatchRef —"),
    ):
        with pytest.raises(RunMismatch, match=f"not the schema {SCHEMA} that was released.*another shape.*{said}"):
            number_of(changed(classes=other))


def test_an_older_schema_that_was_never_released_is_refused() -> None:
    first = orjson.loads((released.SIGNATURES / "1.json").read_bytes())
    assert number_of(orjson.dumps(first)) == 1
    first["classes"]["BatchRef"] = "blake3:other"
    with pytest.raises(RunMismatch, match=r"not the schema 1 that was released: .* another shape: BatchRef"):
        number_of(orjson.dumps(first))


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"format":1}', b'{"schema":"x"}', b'{"classes":1}', b"null"])
def test_what_is_no_schema_is_refused(damage: bytes) -> None:
    with pytest.raises(RunMismatch, match="not a schema"):
        number_of(damage)


def test_a_schema_that_is_not_read_any_more_says_why_and_what_to_do(tmp_path: Path) -> None:
    reader = FileReader({schema.FILE: (released.SIGNATURES / "1.json").read_bytes()})
    step = Refusal("moments were not kept", "export it with verl-core 0.1.0 and begin a new run")
    with pytest.raises(RunMismatch) as caught:
        upgraded(reader, "place", {1: step})
    assert str(caught.value) == f"place: schema 1 is not read any more: {step.reason} — {step.remedy}"


def test_a_signature_changes_with_name_type_and_order_of_fields() -> None:
    shapes = ([("a", int), ("b", str)], [("a", int), ("c", str)], [("a", str), ("b", str)], [("b", str), ("a", int)])
    assert len({tuple(signature(make_dataclass("R", shape))) for shape in shapes}) == 4
    assert signature(BatchRef)[1] == "branch: int"


class FileReader:
    """Files of a checkpoint without tensors."""

    step = 1

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def file(self, path: str) -> bytes:
        return self._files[path]

    def read(self, component: str, piece: Slice) -> TensorChunk:
        raise AssertionError("there are no tensors")
