"""Large files past the page cache are the same files, whatever their size and pieces, and wherever that is refused."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from verl_core.errors import StorageFull, StorageTimeout
from verl_core_storage import direct, posix
from verl_core_storage.local import LocalStorage

PAGE = 4096
BUFFER = 2 * PAGE
SIZES = (BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER, 5 * BUFFER + PAGE, 7 * BUFFER + 123)


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "LARGE", BUFFER)
    monkeypatch.setattr(direct, "_AHEAD", 3 * BUFFER)


def pieces(data: bytes, dice: random.Random) -> Iterator[memoryview]:
    left = memoryview(data)
    while left:
        size = dice.choice((1, 7, PAGE, BUFFER, 3 * BUFFER))
        yield left[:size]
        left = left[size:]


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("size", SIZES)
def test_what_was_written_is_there_and_no_more(tmp_path: Path, size: int) -> None:
    storage, dice = LocalStorage(str(tmp_path)), random.Random(size)
    data = dice.randbytes(size)
    assert storage.put("whole", data) == size
    assert storage.write("staged/pieces", pieces(data, dice)) == size
    for path in ("whole", "staged/pieces"):
        assert (tmp_path / path).read_bytes() == data
        assert allocated(tmp_path / path) < size + 2 * BUFFER, "room that was asked for ahead is given back"


def test_a_large_file_is_written_past_the_cache_and_a_small_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes, write = list[bool](), os.write

    def seen(handle: int, data: memoryview) -> int:
        with open(f"/proc/self/fdinfo/{handle}") as facts:
            flags = int(next(line for line in facts if line.startswith("flags:")).split()[1], 8)
        modes.append(bool(flags & os.O_DIRECT))
        return write(handle, data)

    monkeypatch.setattr(os, "write", seen)
    storage = LocalStorage(str(tmp_path))
    storage.put("small", bytes(BUFFER - 1))
    assert modes == [False]
    modes.clear()
    storage.put("large", bytes(2 * BUFFER + 5))
    assert modes == [True, True, False], "the end is not aligned"


def test_where_it_is_refused_the_file_is_written_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refused = os.write, list[int]()

    def refuses(handle: int, data: memoryview) -> int:
        if len(data) == BUFFER and not refused:
            refused.append(handle)
            raise OSError(22, "Invalid argument")
        return write(handle, data)

    monkeypatch.setattr(os, "write", refuses)
    data = random.Random(1).randbytes(3 * BUFFER + 9)
    LocalStorage(str(tmp_path)).put("a", data)
    assert refused
    assert (tmp_path / "a").read_bytes() == data


def test_what_is_under_way_to_a_slow_disk_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, dice = os.write, random.Random(2)

    def slow(handle: int, data: memoryview) -> int:
        assert threading.current_thread().daemon, "a disk that hangs must not keep the process"
        time.sleep(0.005)
        return write(handle, data)

    monkeypatch.setattr(os, "write", slow)
    data = dice.randbytes(6 * BUFFER + 9)
    LocalStorage(str(tmp_path)).put("a", pieces(data, dice))
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("number", range(4))
def test_whichever_write_fails_the_call_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    write, done = os.write, list[int]()

    def full(handle: int, data: memoryview) -> int:
        done.append(len(data))
        if len(done) == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFull):
        LocalStorage(str(tmp_path)).put("a", bytes(3 * BUFFER + 9))
    assert done == [BUFFER, BUFFER, BUFFER, 9][: number + 1]
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_was_given_up_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        posix.call, "given_up", lambda: (tmp_path / "a").exists() and (tmp_path / "a").stat().st_size > 0
    )
    with pytest.raises(StorageTimeout):
        LocalStorage(str(tmp_path)).write("a", bytes(4 * BUFFER))
    assert (tmp_path / "a").stat().st_size < 4 * BUFFER
