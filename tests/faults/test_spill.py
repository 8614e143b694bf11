"""The state log's object store goes down while the run's folder stands: lines wait there, and follow in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from verl_core.errors import RunBusy, StorageTimeout, StorageUnavailable
from verl_core.state.journal import read_log
from verl_core.state.lines import Entry, made, parse
from verl_core.state.segments import Segments, read_segments
from verl_core.state.spill import RETRY_S, SPILL, Spilling, SpillPlace, carry_over
from verl_core.testing.faulty import killed_at
from verl_core.testing.faulty_objects import LostAnswer, Operation, Watched
from verl_core.testing.memory import MemoryObjects
from verl_core_storage.local import LocalStorage

from tests.support.object_runs import LOG_AT, SMALL, ObjectsOnDisk, controller, left

T = TypeVar("T")
LOG = "state_log.jsonl"
LINES, STEPS = 12, 4


class Outage:
    """Changes number ``first`` to ``last`` of a store fail; with ``landed`` the first of them had landed."""

    def __init__(self, first: int, last: int, *, landed: bool = False) -> None:
        self._first, self._last, self._landed = first, last, landed
        self.changes = 0

    def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
        if not operation.changes:
            return call()
        self.changes += 1
        if not self._first <= self.changes <= self._last:
            return call()
        if self._landed and self.changes == self._first:
            call()
        raise StorageUnavailable("down (injected)", where=operation.where)


def lines(count: int = LINES, *, after: Entry | None = None, nonce: str = "one") -> Iterator[bytes]:
    for n in range(count):
        line = made(after, 1.5, ("run", 0, 1, nonce), "TRAIN", "event", {"n": n})
        after = parse(line, "")
        yield line


class Sink:
    """A ``Spilling`` with a clock of its own: each line comes ``every_s`` after the one before."""

    def __init__(self, store: Watched, files: LocalStorage, *, limit_s: float = 1e9, every_s: float = RETRY_S) -> None:
        self._every_s = every_s
        self.now, self.done, self.told = 0.0, 0, list[object]()
        place = SpillPlace(files, limit_s, self.told.append)
        segments = Segments(store, LOG, read_segments(store, LOG), begins=True)
        self.spilling = Spilling(segments, place, clock=lambda: self.now)

    def write(self, line: bytes) -> None:
        self.now += self._every_s
        self.spilling.write(line)
        self.done += 1

    def write_all(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)


def written(store: MemoryObjects) -> list[bytes]:
    return [str(entry.payload["n"]).encode() for entry in read_log(store, LOG).entries]


WHOLE = [b"%d" % n for n in range(LINES)]


@pytest.mark.parametrize("landed", [False, True])
def test_c4_lines_of_an_outage_wait_and_follow_in_order(tmp_path: Path, landed: bool) -> None:
    often = 0
    for first in range(1, LINES + 1):
        for length in range(1, LINES):
            store, files = MemoryObjects(), LocalStorage(str(tmp_path))
            sink = Sink(Watched(store, Outage(first, first + length - 1, landed=landed)), files)
            waited = False
            for line in lines():
                sink.write(line)
                waited = waited or files.stat(SPILL) is not None
            while files.stat(SPILL) is not None:  # the end of the run: tried again, as the writer thread does
                try:
                    sink.spilling.settle()
                except StorageUnavailable:
                    continue
            assert written(store) == WHOLE
            assert len(sink.told) == waited
            often += waited
    assert often > 100


def test_c4_a_late_write_of_the_first_line_that_failed_changes_nothing(tmp_path: Path) -> None:
    for n in range(1, LINES + 1):
        for late in range(6):
            store, files = MemoryObjects(), LocalStorage(str(tmp_path))
            sink = Sink(Watched(store, LostAnswer(n, late=late)), files, every_s=RETRY_S / 3)
            for line in lines():
                sink.write(line)
            sink.spilling.settle()
            assert written(store) == WHOLE


def test_c4_a_store_that_stays_down_is_an_error_in_the_end_and_the_next_start_has_all_lines(tmp_path: Path) -> None:
    store, files = MemoryObjects(), LocalStorage(str(tmp_path))
    sink = Sink(Watched(store, Outage(3, 10**9)), files, limit_s=4 * RETRY_S)
    with pytest.raises(StorageUnavailable):
        sink.write_all(lines())
    assert written(store) == WHOLE[:2]
    done = sink.done
    assert 5 <= done < LINES
    carry_over(files, store, LOG)
    assert written(store) == WHOLE[:done]
    assert files.stat(SPILL) is None


def test_c4_a_torn_end_of_the_file_was_never_durable(tmp_path: Path) -> None:
    store, files = MemoryObjects(), LocalStorage(str(tmp_path))
    all_lines = list(lines())
    Segments(store, LOG, read_segments(store, LOG), begins=True).write(all_lines[0])
    files.put(SPILL, b"".join(all_lines[:5])[:-7])
    carry_over(files, store, LOG)
    assert written(store) == WHOLE[:4]


def test_c4_lines_of_a_run_that_another_took_over_are_put_aside(tmp_path: Path) -> None:
    store, files = MemoryObjects(), LocalStorage(str(tmp_path))
    mine = list(lines())
    sink = Sink(Watched(store, Outage(3, 6)), files)
    for line in mine[:4]:
        sink.write(line)
    ends = read_log(store, LOG).entries[-1]
    Segments(store, LOG, read_segments(store, LOG), begins=True).write(next(lines(1, after=ends, nonce="two")))
    with pytest.raises(RunBusy):
        sink.write_all(mine[4:])
    carry_over(files, store, LOG)
    assert [entry.nonce for entry in read_log(store, LOG).entries] == ["one", "one", "two"]
    [aside] = list(files.list())
    assert aside.path.startswith(SPILL + ".")
    assert files.get(aside.path).startswith(b"".join(mine[2:4]))


# --- whole runs ------------------------------------------------------------------------------


def go(run: Path, log: Path, around: Callable[..., object] | None = None) -> object:
    """A light run in a folder, its state log in objects that are files of another folder."""
    store = ObjectsOnDisk(LocalStorage(str(log)))
    watched = store if around is None else Watched(store, around)  # type: ignore[arg-type]
    return controller(lambda _: watched, STEPS, changes=(*SMALL, LOG_AT), run=str(run)).run()


def test_c4_a_run_ends_the_same_whenever_its_log_goes_down_and_whenever_it_dies_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verl_core.state.spill.RETRY_S", 0.0)  # each line is a try
    go(tmp_path / "run", tmp_path / "log")
    want = left(LocalStorage(str(tmp_path / "run")), ObjectsOnDisk(LocalStorage(str(tmp_path / "log"))))
    died = 0
    for n in count(3, 43):
        run, log = tmp_path / f"run {n}", tmp_path / f"log {n}"
        killed = killed_at(n, lambda: go(run, log, Outage(4 + n % 9, 12)))  # noqa: B023 - called at once
        died += killed
        go(run, log)
        found = left(LocalStorage(str(run)), ObjectsOnDisk(LocalStorage(str(log))))
        assert found.batches == want.batches
        assert found.history.policy_digest == want.history.policy_digest
        assert not (run / SPILL).exists()
        if not killed:
            break
    assert died > 5


def test_c4_a_hung_store_holds_nothing_up_for_long(tmp_path: Path) -> None:
    """At most a quarter of the time goes into tries."""
    store, files = MemoryObjects(), LocalStorage(str(tmp_path))

    class Slow:
        tries = 0

        def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
            self.tries += 1
            sink.now += 20
            raise StorageTimeout("no answer", where=operation.where)

    slow = Slow()
    sink = Sink(Watched(store, lambda operation, call: call()), files)
    sink.spilling = Spilling(
        Segments(Watched(store, slow), LOG, read_segments(store, LOG), begins=True),
        SpillPlace(files, 1e9),
        clock=lambda: sink.now,
    )
    for line in lines(200):
        sink.write(line)
    assert slow.tries * 20 <= sink.now * 0.3
