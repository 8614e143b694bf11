"""Small runs of every schema that was released, below ``tests/data/schemas/N``, and the shapes of what lies in them.

``python -m tests.support.released`` makes the run and the signatures of today's schema anew: while it is not released,
that is all that a change of a stored record needs. Once it is, its folder stays as it is for good. The script runs
under the code of an older release as well: give it the number, and put that code on the path.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import msgpack
import zstandard

from tests.support import light

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/schemas"
SIGNATURES = ROOT / "core/verl_core/checkpoint/migrations/schemas"
STEPS = 5  # of the schedule that the runs were made for, ragged epochs among them
UNTIL = 3  # step at which they were left
KEEP = "storage.keep_checkpoints=2"
PLACE = Path("/tmp/verl-core/run")  # where they were made: it stands in orchestration.json


def make(number: int) -> None:
    """Write run, shapes and signatures of the schema that the code on the path has."""
    from verl_core.checkpoint import schema

    shutil.rmtree(PLACE, ignore_errors=True)
    with patch("socket.gethostname", return_value="node1"):
        light.run(PLACE, STEPS, until=UNTIL, changes=[KEEP])
    target = DATA / str(number)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PLACE, target / "run", ignore=shutil.ignore_patterns(".lock", ".staging"))
    shutil.rmtree(PLACE)
    (target / "shapes.json").write_text(json.dumps(shapes(target / "run"), indent=1, sort_keys=True) + "\n")
    (SIGNATURES / f"{number}.json").write_bytes(schema.schema_version())


def today() -> int:
    """The number of today's schema."""
    from verl_core.checkpoint import schema

    return schema.SCHEMA


def shapes(run: Path) -> dict[str, object]:
    """File → the shape of its content: keys and kinds of values; of the state log, event → shape of its lines."""
    found: dict[str, object] = {}
    for file in sorted(p for p in run.rglob("*") if p.is_file()):
        name = str(file.relative_to(run))
        if file.name in (".lock", "schema_version.json", "state_log.jsonl"):
            continue  # empty; frozen by the signatures; below
        if file.suffix in (".json", ".jsonl"):
            found[name] = _all([json.loads(line) for line in _documents(file)])
        elif file.suffix == ".msgpack":
            found[name] = shape(msgpack.unpackb(file.read_bytes()))
        elif file.name.endswith(".msgpack.zst"):
            found[name] = shape(msgpack.unpackb(zstandard.ZstdDecompressor().decompress(file.read_bytes())))
        else:
            found[name] = "bytes"
    lines = [json.loads(line) for line in (run / "state_log.jsonl").read_bytes().splitlines()]
    found["state_log.jsonl"] = {e: _all([n for n in lines if n["event"] == e]) for e in {n["event"] for n in lines}}
    return found


def shape(value: object) -> object:
    """Mappings keep their keys; lists the shape of what they hold; numbers are one kind."""
    if isinstance(value, Mapping):
        return {str(key): shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_all(value)] if value else []
    names = {bool: "bool", int: "number", float: "number", str: "text", bytes: "bytes", type(None): "null"}
    return names[type(value)]


def _documents(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]


def _all(values: list[object]) -> object:
    """The shape of all of them; several shapes as a list of alternatives."""
    found = {json.dumps(shape(value), sort_keys=True) for value in values}
    return json.loads(found.pop()) if len(found) == 1 else {"either": [json.loads(text) for text in sorted(found)]}


if __name__ == "__main__":
    make(int(sys.argv[1]) if len(sys.argv) > 1 else today())
