"""The data set fingerprint notices every change, and says which file changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from verl_core.data.fingerprint import Fingerprint, difference, fingerprint
from verl_core.errors import DamagedError, DataError


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, Path]]:
    for name, text in (("a.jsonl", "one\n"), ("b.jsonl", "two\n")):
        (tmp_path / name).write_text(text)
    return [("a.jsonl", tmp_path / "a.jsonl"), ("b.jsonl", tmp_path / "b.jsonl")]


def test_each_file_has_its_sha256_and_size(files: list[tuple[str, Path]]) -> None:
    entry = fingerprint(files).entries[0]
    assert (entry.name, entry.size) == ("a.jsonl", 4)
    assert entry.sha256 == "sha256:" + hashlib.sha256(b"one\n").hexdigest()
    assert fingerprint(files).digest.startswith("sha256:")


def test_it_survives_the_way_through_its_file(files: list[tuple[str, Path]]) -> None:
    mark = fingerprint(files)
    assert Fingerprint.from_json(mark.to_json()) == mark
    assert difference(mark, Fingerprint.from_json(mark.to_json().encode())) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": "sha256:0", "entries": []}', b"\xff"])
def test_a_damaged_fingerprint_file_is_refused(text: str | bytes) -> None:
    with pytest.raises(DamagedError, match="not a data set fingerprint"):
        Fingerprint.from_json(text)


def test_a_changed_byte_names_the_file(files: list[tuple[str, Path]]) -> None:
    before = fingerprint(files)
    files[1][1].write_text("twO\n")
    after = fingerprint(files)
    assert before.digest != after.digest
    (line,) = difference(before, after)
    assert line.startswith("b.jsonl: content differs")


def test_a_file_more_a_file_less_and_another_order_are_told_apart(files: list[tuple[str, Path]]) -> None:
    both, first = fingerprint(files), fingerprint(files[:1])
    assert difference(both, first) == ["b.jsonl: gone"]
    assert difference(first, both) == ["b.jsonl: new"]
    assert difference(both, fingerprint(files[::-1])) == ["the same files in another order"]


def test_an_unreadable_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file") as caught:
        fingerprint([("x", tmp_path / "x")])
    assert caught.value.where == str(tmp_path / "x")
