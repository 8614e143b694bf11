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


def test_files_that_only_grew_are_told_apart_from_those_that_changed(files: list[tuple[str, Path]]) -> None:
    before, paths = fingerprint(files), [path for _, path in files]
    with paths[0].open("a") as stream:
        stream.write("more\n")
    paths[1].write_text("another\n")
    lines = difference(before, fingerprint(files), paths)
    assert lines[0] == "a.jsonl: 5 bytes appended, the first 4 are as before"
    assert lines[1].startswith("b.jsonl: content differs (4 bytes, sha256:")
    assert difference(before, fingerprint(files))[0].startswith("a.jsonl: content differs"), "without the file"


def test_a_file_that_was_cut_or_begins_otherwise_has_not_grown(files: list[tuple[str, Path]]) -> None:
    before, paths = fingerprint(files), [path for _, path in files]
    paths[0].write_text("on\n")
    paths[1].write_text("TWO\nmore\n")
    assert all("content differs" in line for line in difference(before, fingerprint(files), paths))


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "x.jsonl")
        paths[-1].write_text(f"{folder}\n")
    before = fingerprint([("x.jsonl", path) for path in paths])
    paths[0].write_text("ONE\n")
    (line,) = difference(before, fingerprint([("x.jsonl", path) for path in paths]), paths)
    assert line.startswith("x.jsonl: content differs")
    paths[0].write_text("one\n")
    paths[1].write_text("two\nthree\n")
    (line,) = difference(before, fingerprint([("x.jsonl", path) for path in paths]), paths)
    assert line.startswith("x.jsonl (2): 6 bytes appended")


def test_the_evaluation_data_have_their_own_fingerprint(files: list[tuple[str, Path]]) -> None:
    train, val = fingerprint(files[:1]), fingerprint(files[1:])
    text = train.to_json(val)
    assert (Fingerprint.from_json(text), Fingerprint.val_from_json(text)) == (train, val)
    assert Fingerprint.val_from_json(train.to_json()) is None
    with pytest.raises(DamagedError):
        Fingerprint.val_from_json(text.replace('"size": 4', '"size": 5'))


def test_an_unreadable_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file") as caught:
        fingerprint([("x", tmp_path / "x")])
    assert caught.value.where == str(tmp_path / "x")
