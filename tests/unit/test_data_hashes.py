"""A restart does not read the data again, and yet no change of a file goes unnoticed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from verl_core.data import hashes as room
from verl_core.data.hashes import RACY_NS, FileHashes
from verl_core.errors import DataError

LATER = RACY_NS + 10**9


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"one\ntwo\n")
    return path


def restarted(before: FileHashes, clock: Callable[[], int] = time.time_ns) -> FileHashes:
    """What another process knows of it."""
    return FileHashes(FileHashes.decode(before.encode())._known, clock)


def hashed(path: Path, age_ns: int = LATER) -> FileHashes:
    """As when the file was hashed that long after it was written."""
    found = FileHashes(clock=lambda: path.stat().st_ctime_ns + age_ns)
    found.of(path)
    return found


def test_a_file_that_was_left_alone_is_not_read_again(file: Path) -> None:
    first = hashed(file)
    again = restarted(first)
    assert again.of(file).sha256 == sha256(b"one\ntwo\n")
    assert (first.bytes_read, again.bytes_read) == (8, 0)


def test_a_file_that_was_hashed_soon_after_it_was_written_is_read_once_more_and_then_known(file: Path) -> None:
    second = restarted(hashed(file, age_ns=RACY_NS - 1), clock=lambda: time.time_ns() + LATER)
    second.of(file)
    third = restarted(second)
    third.of(file)
    assert (second.bytes_read, third.bytes_read) == (8, 0)


def test_a_change_within_the_same_tick_of_the_clock_is_caught(file: Path) -> None:
    """Size, times and inode are those that were remembered, as after a write in the same tick: the content is not."""
    racy = hashed(file, age_ns=1)
    known = racy.of(file)
    with file.open("r+b") as stream:
        stream.write(b"ONE")
    info = file.stat()
    racy._known[str(file)] = replace(known, mtime_ns=info.st_mtime_ns, ctime_ns=info.st_ctime_ns)
    racy._known[str(file)] = replace(racy._known[str(file)], hashed_ns=info.st_ctime_ns + 1)
    assert racy._known[str(file)].looks_like(info)
    assert restarted(racy).of(file).sha256 == sha256(b"ONE\ntwo\n")


def overwritten(path: Path) -> None:
    path.write_bytes(b"ONE\nTWO\n")


def time_set_back(path: Path) -> None:
    info = path.stat()
    overwritten(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def replaced_with_its_times(path: Path) -> None:
    info, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(b"ONE\nTWO\n")
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.replace(path)


def appended(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"three\n")


def cut(path: Path) -> None:
    os.truncate(path, 3)


def linked_elsewhere(path: Path) -> None:
    path.with_suffix(".other").write_bytes(b"ONE\nTWO\n")
    path.unlink()
    path.symlink_to(path.with_suffix(".other"))


@pytest.mark.parametrize(
    "change", [overwritten, time_set_back, replaced_with_its_times, appended, cut, linked_elsewhere]
)
def test_every_change_of_a_known_file_is_seen(file: Path, change: Callable[[Path], None]) -> None:
    before = hashed(file)
    change(file)
    assert restarted(before).of(file).sha256 == sha256(file.read_bytes())


def test_a_file_with_a_time_in_the_future_is_never_trusted(file: Path) -> None:
    os.utime(file, ns=(0, time.time_ns() + 3600 * 10**9))
    again = restarted(hashed(file))
    again.of(file)
    assert again.bytes_read == 8


class Slow(FileHashes):
    """Somebody writes while it reads, the first ``writes`` times."""

    writes = 0
    path: Path

    def _digest(self, stream: IO[bytes], size: int | None = None) -> str:
        digest = super()._digest(stream, size)
        if self.writes > 0:
            self.writes -= 1
            appended(self.path)
        return digest


def test_a_file_that_changes_while_it_is_read_is_read_again_or_refused(file: Path) -> None:
    slow = Slow()
    slow.path, slow.writes = file, 2
    assert slow.of(file).sha256 == sha256(file.read_bytes())
    slow = Slow()
    slow.path, slow.writes = file, room.TRIES
    with pytest.raises(DataError, match="changes while it is read"):
        slow.of(file)


def test_rows_that_were_read_from_another_file_than_was_hashed_are_refused(file: Path) -> None:
    found = FileHashes()
    found.of(file)
    found.check_unchanged([file])
    appended(file)
    with pytest.raises(DataError, match="changes while it is read") as caught:
        found.check_unchanged([file])
    assert caught.value.where == str(file)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b"\xff", b'{"/x": {"sha256": "sha256:0"}}'])
def test_a_damaged_cache_is_no_cache(file: Path, damage: bytes) -> None:
    found = FileHashes.decode(damage)
    found.of(file)
    assert found.bytes_read == 8


def test_a_single_changed_byte_of_the_cache_makes_it_none(file: Path) -> None:
    data = hashed(file).encode()
    for place in range(len(data)):
        spoiled = FileHashes.decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert spoiled.of(file).sha256 == sha256(file.read_bytes()), place


def test_many_files_are_hashed_in_their_order_and_the_first_error_is_raised(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}" for n in range(20)]
    for n, path in enumerate(paths):
        path.write_bytes(b"x" * n)
    found = FileHashes().of_all(paths)
    assert [one.sha256 for one in found] == [sha256(b"x" * n) for n in range(20)]
    paths[3].unlink()
    with pytest.raises(DataError) as caught:
        FileHashes().of_all(paths)
    assert caught.value.where == str(paths[3])
    assert FileHashes().of_all([]) == []


def test_nothing_known_is_nothing_to_keep() -> None:
    assert FileHashes().encode() == b""
