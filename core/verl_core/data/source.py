"""Rows of data files in a fixed order: JSONL, Parquet and folders written by ``datasets``.

Parquet and ``datasets`` are imported where they are used: reading JSONL needs neither.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from ..errors import DataError

_INSTALL = "pip install 'verl-core[data]'"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns, and the place that an error names (``file:line`` or ``file row n``, rows from 0)."""

    values: Mapping[str, object]
    where: str

    def column(self, key: str) -> object:
        """Raises DataError that names the columns which exist."""
        if key not in self.values:
            have = ", ".join(sorted(self.values)) or "none"
            raise DataError(
                f"no column {key!r}; columns: {have}", where=self.where, remedy="set data.prompt_key or data.answer_key"
            )
        return self.values[key]


@dataclass(frozen=True, slots=True)
class Source:
    """A data file, or a ``datasets`` folder with its files. Names stay the same when the data are moved."""

    path: Path
    files: tuple[tuple[str, Path], ...]  # (name, path), sorted by name
    read: Callable[[Path], Iterator[Row]]


def find_sources(files: Sequence[str]) -> list[Source]:
    """Resolve files, folders and globs: in the order given, sorted by name within each. Raises DataError."""
    if not files:
        raise DataError("no data files", remedy="set data.train_files (data.val_files), or data.task")
    return [source for pattern in files for path in _expand(pattern) for source in _sources_at(path)]


def read_rows(sources: Sequence[Source]) -> list[Row]:
    """All rows, in order. Raises DataError for an empty, unreadable or malformed file; the line is named."""
    rows: list[Row] = []
    for source in sources:
        count = len(rows)
        try:
            rows.extend(source.read(source.path))
        except OSError as error:
            raise DataError(error.strerror or str(error), where=str(source.path)) from error
        if len(rows) == count:
            raise DataError("no rows: the file is empty", where=str(source.path))
    return rows


def _expand(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.exists():
        return [path]
    matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    if not matches:
        raise DataError("no such file or folder", where=pattern, remedy="check data.train_files and data.val_files")
    return [Path(match) for match in matches]


def _sources_at(path: Path) -> list[Source]:
    if not path.is_dir():
        return [Source(path, ((path.name, path),), _reader(path))]
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if "state.json" in names:
        files = tuple((f"{path.name}/{name}", path / name) for name in names if (path / name).is_file())
        return [Source(path, files, _read_dataset)]
    if "dataset_dict.json" in names:
        splits = ", ".join(name for name in names if (path / name).is_dir())
        raise DataError("a datasets folder with splits", where=str(path), remedy=f"name the folder of one: {splits}")
    sources = [Source(path / name, ((name, path / name),), _reader(path / name)) for name in names if _known(name)]
    if not sources:
        raise DataError("the folder holds no .jsonl or .parquet file", where=str(path))
    return sources


def _known(name: str) -> bool:
    return name.endswith((".jsonl", ".parquet"))


def _reader(path: Path) -> Callable[[Path], Iterator[Row]]:
    if not _known(path.name):
        raise DataError(
            "unknown kind of data file", where=str(path), remedy="give .jsonl, .parquet or a datasets folder"
        )
    return _read_jsonl if path.name.endswith(".jsonl") else _read_parquet


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise DataError(f"malformed JSON: {error}", where=where, remedy="mend or remove the line") from error
            if not isinstance(value, dict):
                raise DataError(f"not a JSON object but {type(value).__name__}", where=where)
            yield Row(value, where)


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow.lib
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("reading Parquet needs pyarrow", where=str(path), remedy=_INSTALL) from error
    try:
        records = parquet.read_table(path).to_pylist()
    except pyarrow.lib.ArrowException as error:
        raise DataError(f"not a readable Parquet file: {_first_line(error)}", where=str(path)) from error
    return (Row(record, f"{path} row {number}") for number, record in enumerate(records))


def _read_dataset(path: Path) -> Iterator[Row]:
    try:
        from datasets import Dataset, load_from_disk
        from pyarrow.lib import ArrowException
    except ImportError as error:
        raise DataError("reading a datasets folder needs datasets", where=str(path), remedy=_INSTALL) from error
    try:
        data = load_from_disk(str(path))
        records = data.to_list() if isinstance(data, Dataset) else []
    except (ArrowException, ValueError, KeyError, TypeError) as error:
        raise DataError(f"not a readable datasets folder: {_first_line(error)}", where=str(path)) from error
    return (Row(record, f"{path} row {number}") for number, record in enumerate(records))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
