"""The write queue: order, grouping, patience, and what happens when it breaks."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from verl_core.errors import DamagedError, StorageFull, StorageTimeout
from verl_core.writes import WriteQueue


class Sink:
    """Keeps what is written; fails the first ``failures`` times."""

    def __init__(self, failures: int = 0) -> None:
        self.groups: list[bytes] = []
        self.failures = failures

    def write(self, lines: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageFull("full")
        self.groups.append(lines)


def test_everything_happens_in_the_order_in_which_it_was_handed_in() -> None:
    queue, sink = WriteQueue(patience_s=1), Sink()
    seen: list[tuple[int, int]] = []

    def look(i: int) -> None:
        seen.append((i, b"".join(sink.groups).count(b"\n")))

    for i in range(20):
        queue.line(sink, b"%d\n" % i)
        queue.submit(partial(look, i))
    queue.close()
    assert seen == [(i, i + 1) for i in range(20)], "each task runs after the lines before it, and before those behind"


def test_lines_that_wait_together_are_one_write() -> None:
    queue, sink, gate = WriteQueue(patience_s=1), Sink(), threading.Event()
    queue.submit(gate.wait)
    for i in range(10):
        queue.line(sink, b"%d" % i)
    gate.set()
    queue.close()
    assert sink.groups == [b"0123456789"]


def test_a_full_disk_is_waited_for_and_told() -> None:
    told: list[str] = []
    queue, sink = WriteQueue(patience_s=5, on_wait=lambda error: told.append(str(error))), Sink(failures=2)
    queue.line(sink, b"a")
    queue.close()
    assert (sink.groups, told) == ([b"a"], ["full", "full"])


def test_after_the_patience_nothing_later_is_written_and_the_caller_hears() -> None:
    queue, bad, good = WriteQueue(patience_s=0.2), Sink(failures=10**6), Sink()
    queue.line(bad, b"a")
    queue.line(good, b"b")
    with pytest.raises(StorageFull):
        queue.barrier()
    with pytest.raises(StorageFull):
        queue.line(good, b"c")
    with pytest.raises(StorageFull):
        queue.close()
    assert good.groups == []


def test_an_error_that_patience_does_not_mend_breaks_at_once() -> None:
    queue = WriteQueue(patience_s=60)

    def damaged() -> None:
        raise DamagedError("bad")

    queue.submit(damaged)
    with pytest.raises(DamagedError):
        queue.barrier(5)


def test_a_full_queue_holds_its_caller_back() -> None:
    queue, gate, put = WriteQueue(patience_s=1, limit=2), threading.Event(), []

    def hand_in() -> None:
        for i in range(6):
            queue.submit(gate.wait)
            put.append(i)

    thread = threading.Thread(target=hand_in)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert len(put) <= 3
    gate.set()
    thread.join(5)
    assert len(put) == 6
    queue.close()


def test_c07_a_storage_call_that_never_returns_ends_the_wait_of_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verl_core.writes._SLACK_S", 0.1)
    queue, gate = WriteQueue(patience_s=0.1, limit=2), threading.Event()

    def hand_in() -> None:
        for _ in range(6):
            queue.submit(gate.wait)

    try:
        with pytest.raises(StorageTimeout, match="none was done"):
            hand_in()
    finally:
        gate.set()
        queue.close()
