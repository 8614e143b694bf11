"""Data files become rows in a fixed order, and what is wrong with them is said with its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from verl_core.data.source import Row, find_sources, read_rows
from verl_core.errors import DataError

RECORDS = [{"prompt": f"p{i}", "answer": str(i)} for i in range(5)]


def write_jsonl(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_parquet(path: Path, records: list[dict[str, str]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


def read(*files: object) -> list[Row]:
    return read_rows(find_sources([str(file) for file in files]))


def test_jsonl_parquet_and_datasets_folders_give_the_same_rows(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(RECORDS).save_to_disk(tmp_path / "saved")
    jsonl, parquet = write_jsonl(tmp_path / "a.jsonl", RECORDS), write_parquet(tmp_path / "a.parquet", RECORDS)
    for place in (jsonl, parquet, tmp_path / "saved"):
        assert [row.values for row in read(place)] == RECORDS, place
    names = [name for name, _ in find_sources([str(tmp_path / "saved")])[0].files]
    assert names == ["saved/data-00000-of-00001.arrow", "saved/dataset_info.json", "saved/state.json"]


def test_folders_and_globs_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", RECORDS[3:])
    write_parquet(tmp_path / "a.parquet", RECORDS[:3])
    (tmp_path / "README.md").write_text("not data")
    assert [row.values for row in read(tmp_path)] == RECORDS
    assert [row.values for row in read(tmp_path / "*.[jp]*")] == RECORDS
    assert [row.values for row in read(tmp_path / "b.jsonl", tmp_path / "a.parquet")] == RECORDS[3:] + RECORDS[:3]


def test_blank_lines_are_passed_over_and_line_numbers_still_count_them(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n\n')
    assert [row.where for row in read(file)] == [f"{file}:1", f"{file}:3"]


@pytest.mark.parametrize("bad", ['{"prompt": "x"', "[1, 2]", "{'a': 1}", '"\\ud800"'])
def test_a_malformed_line_is_named(tmp_path: Path, bad: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"prompt": "fine"}\n' + bad + "\n")
    with pytest.raises(DataError) as caught:
        read(file)
    assert caught.value.where == f"{file}:2"
    assert caught.value.exit_code == 2


def test_bytes_that_are_no_text_are_a_malformed_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"prompt": "\xff\xfe"}\n')
    with pytest.raises(DataError, match="malformed JSON"):
        read(tmp_path / "x.jsonl")


def test_an_empty_file_is_an_error_of_every_kind(tmp_path: Path) -> None:
    write_parquet(tmp_path / "e.parquet", RECORDS)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    pyarrow.parquet.write_table(table.slice(0, 0), tmp_path / "e.parquet")
    (tmp_path / "e.jsonl").write_text("\n")
    for file in (tmp_path / "e.parquet", tmp_path / "e.jsonl"):
        with pytest.raises(DataError, match="empty") as caught:
            read(file)
        assert caught.value.where == str(file)


def test_a_damaged_parquet_or_datasets_folder_is_one_line_that_names_it(tmp_path: Path) -> None:
    from datasets import Dataset

    (tmp_path / "x.parquet").write_bytes(b"PAR1 but not really")
    Dataset.from_list(RECORDS).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{}")
    for place in (tmp_path / "x.parquet", tmp_path / "saved"):
        with pytest.raises(DataError, match="not a readable") as caught:
            read(place)
        assert caught.value.where == str(place)
        assert "\n" not in str(caught.value)


def test_a_datasets_folder_with_splits_asks_for_one(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({"train": Dataset.from_list(RECORDS)}).save_to_disk(tmp_path / "d")
    with pytest.raises(DataError, match="train"):
        read(tmp_path / "d")
    assert len(read(tmp_path / "d" / "train")) == 5


def test_what_does_not_exist_or_is_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n")
    for place, reason in (
        ("nothing.jsonl", "no such file"),
        ("*.jsonl", "no such file"),
        ("x.csv", "unknown kind"),
        (".", "holds no"),
    ):
        with pytest.raises(DataError, match=reason):
            read(tmp_path / place)
    with pytest.raises(DataError, match="no data files"):
        read()


def test_a_missing_column_names_row_and_columns(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "x.jsonl", RECORDS)
    with pytest.raises(DataError, match="no column 'question'; columns: answer, prompt") as caught:
        read(file)[2].column("question")
    assert caught.value.where == f"{file}:3"


@pytest.mark.parametrize("kind", ["parquet", "datasets"])
def test_a_missing_library_is_an_error_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "x.parquet"
    if kind == "datasets":
        place = tmp_path / "saved"
        place.mkdir()
        (place / "state.json").write_text("{}")
    else:
        place.write_bytes(b"")
    for module in ("datasets", "pyarrow", "pyarrow.lib", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # the import system's own mark for "not there"
    with pytest.raises(DataError, match=r"pip install 'verl-core\[data\]'"):
        read(place)
