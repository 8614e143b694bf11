"""Deadlines and attempts by themselves: what is waited for, how often it is tried, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from concurrent import futures
from dataclasses import replace

import pytest
from verl_core.errors import (
    ObjectExists,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageThrottled,
    StorageTimeout,
    StorageUnavailable,
)
from verl_core_storage.attempts import Attempts, Problem
from verl_core_storage.deadline import Call, Deadline, Limits, Waiter
from verl_core_storage.threads import Threads

CALL = Call("get", "s3://runs/a", "check the endpoint")
QUICK = Limits(timeout_s=1.0, attempts=3, alert_after_s=0.1)


class Trouble(Exception):
    """Of a client: what it means."""

    def __init__(self, kind: type[StorageError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


def run(answers: list[type[StorageError] | str | None], limits: Limits = QUICK, **more: object) -> tuple[object, int]:
    """The outcome of requests that end so, one after the other (None: never), and how many were made."""
    made = 0

    async def request() -> str:
        nonlocal made
        answer = answers[made]
        made += 1
        if answer is None:
            await asyncio.sleep(60)
        if isinstance(answer, type):
            raise Trouble(answer)
        return str(answer)

    def explain(error: Exception) -> Problem:
        assert isinstance(error, Trouble)
        return Problem(error.kind, str(error))

    async def work() -> object:
        try:
            return await Attempts((Trouble,), explain).run(request, CALL, Deadline(limits), **more)  # type: ignore[arg-type]
        except StorageError as error:
            return error

    return asyncio.run(work()), made


@pytest.mark.parametrize("kind", [StorageTimeout, StorageUnavailable, StorageThrottled, StorageConflict])
def test_what_may_pass_is_tried_again(kind: type[StorageError]) -> None:
    assert run([kind, kind, "done"]) == ("done", 3)
    found, made = run([kind, kind, kind, "done"])
    assert (type(found), made) == (kind, 3)


@pytest.mark.parametrize("kind", [StorageDenied, ObjectExists, StorageError])
def test_what_will_not_pass_is_said_at_once(kind: type[StorageError]) -> None:
    found, made = run([kind, "done"])
    assert (type(found), made) == (kind, 1)


def test_a_request_without_an_answer_is_repeated_and_ends_in_a_timeout() -> None:
    assert run([None, "done"]) == ("done", 2)
    begin = time.monotonic()
    found, made = run([None] * 9)
    assert isinstance(found, StorageTimeout)
    assert made >= 2
    assert time.monotonic() - begin < 1.3
    assert (found.where, found.remedy) == (CALL.where, CALL.remedy)


def test_the_pause_between_attempts_never_passes_the_deadline() -> None:
    begin = time.monotonic()
    found, made = run([StorageThrottled] * 99, Limits(timeout_s=0.5, attempts=99))
    assert isinstance(found, StorageThrottled)
    assert 2 <= made < 10
    assert time.monotonic() - begin < 0.6


@pytest.mark.parametrize(
    ("answers", "mine", "wanted"),
    [
        ([StorageTimeout, ObjectExists], True, "landed"),
        ([StorageUnavailable, StorageConflict], True, "landed"),
        ([StorageTimeout, ObjectExists], False, ObjectExists),
        ([ObjectExists], True, "landed"),  # the connection repeated it by itself
        ([StorageThrottled, ObjectExists], False, ObjectExists),
    ],
)
def test_a_name_that_is_taken_may_be_taken_by_the_call_itself(
    answers: list[type[StorageError] | str | None], mine: bool, wanted: object
) -> None:
    asked: list[bool] = []

    async def landed(unclear: bool) -> str | None:
        asked.append(unclear)
        return "landed" if mine else None

    found, _ = run(answers, landed=landed)
    assert found == wanted or type(found) is wanted
    assert asked == [answers[0] in (StorageTimeout, StorageUnavailable)]


# --- waiting ----------------------------------------------------------------------------------


def test_silence_is_told_once_and_progress_is_no_silence() -> None:
    limits, told = replace(QUICK, timeout_s=5.0, alert_after_s=0.5), list[StorageError]()
    waiter, deadline = Waiter(limits, told.append), Deadline(limits)
    future: futures.Future[str] = futures.Future()
    ticks = [threading.Timer(0.1 * n, deadline.progress) for n in range(1, 7)]
    ticks.append(threading.Timer(0.7, future.set_result, ["done"]))
    for tick in ticks:
        tick.start()
    assert waiter.wait(future, CALL, deadline) == "done"
    assert told == []
    quiet: futures.Future[str] = futures.Future()
    threading.Timer(1.2, quiet.set_result, ["done"]).start()
    assert waiter.wait(quiet, CALL, Deadline(limits)) == "done"
    [error] = told
    assert re.search(r"no answer for (0\.\d+|1) s", error.what)


def test_whoever_waits_gives_up_at_the_deadline_and_bytes_move_it() -> None:
    limits = Limits(timeout_s=0.2, min_bytes_per_s=100)
    begin = time.monotonic()
    with pytest.raises(StorageTimeout, match=r"not done within 0\.2 s"):
        Waiter(limits).wait(futures.Future(), CALL, Deadline(limits))
    assert 0.2 <= time.monotonic() - begin < 1
    deadline = Deadline(limits)
    deadline.carry(50)
    begin = time.monotonic()
    with pytest.raises(StorageTimeout, match=r"not done within 0\.7 s"):
        Waiter(limits).wait(futures.Future(), CALL, deadline)
    assert 0.7 <= time.monotonic() - begin < 1.5


def test_threads_are_bounded_and_given_up_jobs_know_it() -> None:
    threads, gate, seen = Threads(limit=2), threading.Event(), list[bool]()

    def work() -> str:
        gate.wait()
        job = threads.current()
        seen.append(job is not None and job.abandoned)
        return "done"

    first, second = threads.start(work, "a"), threads.start(work, "b")
    with pytest.raises(StorageTimeout, match="2 calls have not returned"):
        threads.start(work, "c")
    first.cancel()
    gate.set()
    assert second.result(5) == "done"
    assert first.result(5) == "done"
    assert sorted(seen) == [False, True]
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            assert threads.start(lambda: "again", "d").result(5) == "again"
            break
        except StorageTimeout:
            time.sleep(0.01)


def test_an_error_of_a_thread_is_raised_where_its_result_is_asked_for() -> None:
    def work() -> None:
        raise StorageDenied("no")

    with pytest.raises(StorageDenied):
        Threads().start(work, "a").result(5)
