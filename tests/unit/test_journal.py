"""The state log: a hash chain whose torn tail is put aside, and whose damage is named and never run over."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_core.errors import JournalError, StorageFull
from verl_core.protocols import FileStorage
from verl_core.state.journal import Journal, parse, read_log, repair
from verl_core.state.lines import made
from verl_core.testing.memory import MemoryObjects
from verl_core.types import BuildContext, Bytes
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalConfig, build_local

LOG = "state_log.jsonl"


def storage_at(path: Path) -> FileStorage:
    storage = build_local(LocalConfig(), BuildContext(uri=str(path)))
    assert isinstance(storage, FileStorage)
    return storage


def write(storage: FileStorage, count: int, attempt: int = 1) -> None:
    log = read_log(storage, LOG)
    repair(storage, LOG, log, attempt)
    writes = WriteQueue(patience_s=1)
    journal = Journal(storage, LOG, log, writes, identity=("run", 0, attempt, "n"), wall=lambda: 1.5)
    for i in range(count):
        entry = journal.record("event", "TRAIN", {"i": i})
        assert entry.payload == {"i": i}
        writes.barrier()  # an append of its own for each line
    writes.close()


def test_what_is_recorded_is_read_back_and_chained(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 3)
    write(storage, 2, attempt=2)
    entries = read_log(storage, LOG).entries
    assert [(e.seq, e.attempt, e.payload["i"]) for e in entries] == [
        (0, 1, 0),
        (1, 1, 1),
        (2, 1, 2),
        (3, 2, 0),
        (4, 2, 1),
    ]
    assert [e.prev for e in entries[1:]] == [e.hash for e in entries[:-1]]


def test_c14_a_log_cut_at_any_byte_keeps_its_whole_lines_and_goes_on(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 3)
    data = (tmp_path / LOG).read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for cut in range(ends[1], len(data) + 1):
        (tmp_path / LOG).write_bytes(data[:cut])
        whole = sum(1 for end in ends if end <= cut)
        log = read_log(storage, LOG)
        assert (len(log.entries), log.torn) == (whole, data[ends[whole - 1] : cut])
    write(storage, 1, attempt=2)
    assert len(read_log(storage, LOG).entries) == 4


def test_a_torn_line_is_kept_aside(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 2)
    with open(tmp_path / LOG, "ab") as file:
        file.write(b'{"seq": 2, "half')
    write(storage, 1, attempt=2)
    assert (tmp_path / f"{LOG}.torn.2").read_bytes() == b'{"seq": 2, "half'
    assert [e.seq for e in read_log(storage, LOG).entries] == [0, 1, 2]


def test_a_flipped_byte_anywhere_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 3)
    data = (tmp_path / LOG).read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for place in range(0, ends[1], 7):
        flipped = bytearray(data)
        flipped[place] ^= 1
        (tmp_path / LOG).write_bytes(flipped)
        line = 1 + sum(1 for end in ends if end <= place)
        with pytest.raises(JournalError, match=f"{LOG}:({line}|{line + 1})"):
            read_log(storage, LOG)


def test_a_group_of_lines_torn_anywhere_is_no_damage(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 2)
    durable = (tmp_path / LOG).read_bytes()
    before, group = read_log(storage, LOG).entries[-1], b""
    for i in range(3):
        line = made(before, 1.5, ("run", 0, 1, "n"), "TRAIN", "event", {"i": i}, durable=2)
        before, group = parse(line, ""), group + line
    for place in range(0, len(group), 11):
        torn = bytes(place) + group[place:]
        (tmp_path / LOG).write_bytes(durable + torn)
        log = read_log(storage, LOG)
        assert (len(log.entries), log.torn) == ((2, torn) if place else (5, b""))


def test_lines_swapped_or_taken_out_break_the_chain(tmp_path: Path) -> None:
    storage = storage_at(tmp_path)
    write(storage, 4)
    lines = (tmp_path / LOG).read_bytes().splitlines(keepends=True)
    for bad in (lines[:1] + lines[2:], [lines[1], lines[0], *lines[2:]], [lines[0], *lines]):
        (tmp_path / LOG).write_bytes(b"".join(bad))
        with pytest.raises(JournalError, match="chain"):
            read_log(storage, LOG)


def test_a_failed_append_leaves_no_half_line_behind(tmp_path: Path) -> None:
    inner = storage_at(tmp_path)
    failures = iter([True, True, False, False, True, False])

    class Flaky(type(inner)):  # type: ignore[misc]
        """Writes half of the lines, then says that the disk is full."""

        def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
            if next(failures, False):
                super().append(path, bytes(data)[: len(data) // 2], sync=sync)
                raise StorageFull("full")
            super().append(path, data, sync=sync)

    storage = Flaky.__new__(Flaky)
    storage.__dict__.update(inner.__dict__)
    writes = WriteQueue(patience_s=20)
    journal = Journal(storage, LOG, read_log(storage, LOG), writes, identity=("run", 0, 1, "n"), wall=lambda: 0.0)
    for i in range(4):
        journal.record("event", "TRAIN", {"i": i})
        writes.barrier()
    writes.close()
    assert [e.payload["i"] for e in read_log(inner, LOG).entries] == [0, 1, 2, 3]


# --- in objects ------------------------------------------------------------------------------------


def test_a_long_log_in_objects_is_few_objects_and_goes_on_where_it_stood() -> None:
    store = MemoryObjects()
    lines = 0
    for attempt in (1, 2):
        log = read_log(store, LOG)
        writes = WriteQueue(patience_s=1)
        journal = Journal(store, LOG, log, writes, identity=("run", 0, attempt, f"n{attempt}"), wall=lambda: 1.5)
        for i in range(4500):
            journal.record("event", "TRAIN", {"i": i})
            if i % 3 == 0:
                writes.barrier()  # so that groups are small, as in a run
        writes.close()
        lines += 4500
        entries = read_log(store, LOG).entries
        assert [entry.seq for entry in entries] == list(range(lines))
    names = [stat.path.removeprefix("state_log.d/") for stat in store.list()]
    assert names[0] == "000000000000-000000004095.jsonl"
    fences = [name for name in names if name in ("000000000000.jsonl", "000000004500.jsonl")]
    assert len(fences) == 2, "what opens an attempt is never deleted"
    assert len(names) < 160
