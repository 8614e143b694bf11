"""Calls in the process beside this one: the same results, errors and log lines, and nothing lost when it is gone."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from verl_core import apart, errors
from verl_core.apart import Helper
from verl_core.errors import ObjectMissing, PreflightError, StorageTimeout, VerlError
from verl_core.testing import crash
from verl_core.testing.faulty import killed_at
from verl_core_storage.local import LocalStorage

from tests.support.beside import at_once


class Desk:
    """A fixture: what is called tells where it was."""

    def __init__(self, portable: bool = True) -> None:
        self._portable = portable

    def portable(self) -> bool:
        return self._portable

    def pid(self) -> int:
        return os.getpid()

    def length(self, data: bytes | memoryview) -> tuple[int, int]:
        return os.getpid(), memoryview(data).nbytes

    def fail(self, error: BaseException) -> None:
        raise error

    def odd(self) -> None:
        class Odd(Exception):
            pass

        raise Odd("cannot be pickled")

    def warn(self) -> None:
        logging.getLogger("verl.desk").warning("look at %s", "this")

    def pass_points(self, times: int) -> None:
        for _ in range(times):
            crash.point("here")

    def die(self, alive: int) -> int:
        if os.getpid() != alive:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "AFTER", apart.AFTER)
    monkeypatch.setattr(Helper, "_start", Helper._start)
    at_once()


@pytest.fixture
def desk(ready: None) -> Desk:
    return Desk()


@pytest.fixture
def helper(desk: Desk) -> Iterator[Helper]:
    found = Helper([desk])
    yield found
    found.close()


def test_a_call_is_made_by_the_other_process(helper: Helper, desk: Desk) -> None:
    other = helper(desk.pid)
    assert other == helper.pid != os.getpid()
    assert helper(desk.length, b"x" * 10) == (other, 10)
    assert helper(desk.length, memoryview(bytes(3_000_000))) == (other, 3_000_000)
    assert helper(desk.length, memoryview(b"")) == (other, 0)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="threads have priorities of their own on Linux only")
def test_the_process_gives_way_to_those_that_train(helper: Helper, desk: Desk) -> None:
    other = helper(desk.pid)
    assert os.sched_getscheduler(other) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, other) == min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)


def test_what_is_too_large_or_cannot_be_sent_stays_here(
    helper: Helper, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "LIMIT", 1000)
    assert helper(desk.length, memoryview(bytes(1001)))[0] == os.getpid()
    assert helper(desk.length, bytes(100))[0] == helper.pid
    with pytest.raises(TypeError, match="function"):
        helper(desk.length, lambda: 0)  # type: ignore[arg-type]


def test_a_short_run_starts_no_process() -> None:
    desk = Desk()
    helper = Helper([desk])
    for _ in range(apart.AFTER):
        assert helper(desk.pid) == os.getpid()
    assert helper.pid is None
    helper.close()


@pytest.mark.parametrize("other", [object(), Desk(portable=False)])
def test_what_is_not_portable_is_called_here(ready: None, other: object) -> None:
    desk = other if isinstance(other, Desk) else Desk()
    helper = Helper([other])
    assert helper(desk.pid) == os.getpid()
    assert helper.pid is None


def _tree(root: type[VerlError] = VerlError) -> Iterator[type[VerlError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


@pytest.mark.parametrize("kind", sorted({k for k in _tree() if k.__module__ == errors.__name__}, key=str))
def test_each_error_of_the_tree_comes_back_as_it_was(kind: type[VerlError]) -> None:
    error = PreflightError([ObjectMissing("a")]) if kind is PreflightError else kind("what", where="w", remedy="r")
    answer = apart._loads(apart._answer(Desk().fail, (error,), {}))
    assert (type(answer[1]), str(answer[1]), answer[1].exit_code) == (kind, str(error), error.exit_code)


def test_any_other_error_comes_back_too(helper: Helper, desk: Desk) -> None:
    with pytest.raises(ObjectMissing, match="w: what"):
        helper(desk.fail, ObjectMissing("what", where="w"))
    with pytest.raises(KeyError, match="key"):
        helper(desk.fail, KeyError("key"))
    with pytest.raises(VerlError, match="Odd: cannot be pickled"):
        helper(desk.odd)
    assert helper(desk.pid) == helper.pid


def test_its_log_lines_are_those_of_this_process(helper: Helper, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    helper(desk.warn)
    assert [(r.name, r.getMessage()) for r in caplog.records] == [("verl.desk", "look at this")]


def test_a_call_that_it_did_not_live_to_answer_is_made_here(
    helper: Helper, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    assert helper(desk.pid) != os.getpid()
    assert helper(desk.die, os.getpid()) == os.getpid()
    assert "writes go on in this one" in caplog.text
    assert (helper(desk.pid), helper.pid) == (os.getpid(), None)


def test_signals_for_the_controller_do_not_end_it(helper: Helper, desk: Desk) -> None:
    other = helper(desk.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(other, number)
    assert helper(desk.pid) == other


def test_it_ends_with_the_run(desk: Desk) -> None:
    helper = Helper([desk])
    other = helper(desk.pid)
    helper.close()
    assert not psutil.pid_exists(other)
    with pytest.raises(StorageTimeout, match="the run ends"):
        helper._gone()  # as a call would find it that is under way in another thread


def test_it_dies_with_a_process_that_is_killed(ready: None, tmp_path: Path) -> None:
    def operation() -> None:
        desk = Desk()
        helper = Helper([desk])
        (tmp_path / "pid").write_text(str(helper(desk.pid)))
        crash.point("here")

    assert killed_at(1, operation)
    other = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while psutil.pid_exists(other) and time.monotonic() < until:
        time.sleep(0.01)
    assert not psutil.pid_exists(other)


@pytest.mark.parametrize("at", range(1, 8))
def test_crash_points_count_as_if_they_were_passed_here(ready: None, tmp_path: Path, at: int) -> None:
    def operation() -> None:
        desk = Desk()
        helper = Helper([desk])
        for call in (desk.pass_points, helper.__call__):
            for number in range(3):
                (tmp_path / "seen").write_text(f"{call.__name__} {number}")
                desk.pass_points(1) if call == desk.pass_points else helper(desk.pass_points, 1)

    assert killed_at(at, operation) is (at <= 6)
    assert (tmp_path / "seen").read_text().endswith(str(min(at - 1, 5) % 3))


def test_a_storage_that_cannot_be_loaded_there_is_used_here(
    ready: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = type("Here", (LocalStorage,), {"__module__": "nowhere", "__qualname__": "Here"})(str(tmp_path))
    write: Callable[..., int] = storage.put
    helper = Helper([storage])
    assert helper(write, "a", b"12") == 2
    assert (tmp_path / "a").read_bytes() == b"12"
    helper.close()
