"""The write queue as a promise: who waits has waited, errors stay, and each line goes where it belongs."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest
from verl_core.errors import StorageFull, StorageTimeout
from verl_core.writes import WriteQueue


class Sink:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, lines: bytes) -> None:
        self.lines.append(lines)


def test_a_barrier_returns_only_after_everything_before_it_is_done() -> None:
    queue, done = WriteQueue(patience_s=1), list[int]()

    def slowly(i: int) -> None:
        time.sleep(0.03)
        done.append(i)

    for i in range(3):
        queue.submit(partial(slowly, i))
    queue.barrier()
    assert done == [0, 1, 2]
    queue.close()


def test_lines_of_two_logs_that_wait_together_go_each_to_its_own() -> None:
    queue, gate, one, other = WriteQueue(patience_s=1), threading.Event(), Sink(), Sink()
    queue.submit(gate.wait)
    for i in range(4):
        queue.line(one if i % 2 else other, b"%d" % i)
    gate.set()
    queue.close()
    assert (one.lines, other.lines) == ([b"1", b"3"], [b"0", b"2"])


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="threads have priorities of their own on Linux only")
def test_only_the_writer_thread_gives_way_to_those_that_train() -> None:
    queue, found = WriteQueue(patience_s=1), list[tuple[int, int]]()

    def look() -> None:
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))

    queue.submit(look)
    queue.close()
    look()
    (of_writer, nice), (of_main, mine) = found
    assert (of_writer, of_main) == (os.SCHED_BATCH, os.SCHED_OTHER)
    assert nice == min(mine + 5, 19)


def test_an_error_stays_until_the_end_for_whoever_asks() -> None:
    queue = WriteQueue(patience_s=0)

    def full() -> None:
        raise StorageFull("full")

    queue.submit(full)
    for ask in (queue.barrier, queue.check, queue.barrier, queue.close):
        with pytest.raises(StorageFull):
            ask()


def test_closing_writes_what_still_waits() -> None:
    queue, gate, sink = WriteQueue(patience_s=1), threading.Event(), Sink()
    queue.submit(gate.wait)
    queue.line(sink, b"late")
    gate.set()
    queue.close()
    assert sink.lines == [b"late"]


def test_c07_who_waits_for_a_storage_that_never_answers_hears_of_it_within_the_deadline() -> None:
    """A mount that hangs in the middle of a call holds the one writer, not those who wait for it."""
    queue, gate = WriteQueue(patience_s=1), threading.Event()
    queue.submit(gate.wait)
    begin = time.monotonic()
    with pytest.raises(StorageTimeout, match="writes did not finish within 0 s — check the storage"):
        queue.barrier(timeout_s=0.2)
    assert time.monotonic() - begin < 2
    gate.set()
    queue.close()


def test_c07_however_many_hand_in_one_thread_writes() -> None:
    """So that no two writers of a run ever meet on one target."""
    queue, names = WriteQueue(patience_s=1), set[int]()
    hands = [threading.Thread(target=lambda: queue.submit(lambda: names.add(threading.get_ident()))) for _ in range(8)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    queue.close()
    assert len(names) == 1
