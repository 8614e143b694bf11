"""Who holds a run: a process that has ended does not, also while nobody has taken notice of its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from verl_core.errors import RunBusy
from verl_core.quickstart.folders import _draft_of
from verl_core.state.claim import Controller, read_controller, write_controller
from verl_core.state.lease import hold
from verl_core.testing.memory import MemoryObjects


@pytest.fixture
def zombie() -> Iterator[int]:
    """A process that was killed and that its parent, this one, has not waited for."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.kill(process.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield process.pid
    process.communicate()


def held_by(pid: int, started: float | None = None) -> Controller:
    return Controller(pid, socket.gethostname(), 1, "nonce", time.time() if started is None else started)


def test_who_is_at_work_is_told_from_who_is_not(zombie: int) -> None:
    assert held_by(os.getpid()).alive
    assert not held_by(zombie).alive
    assert not held_by(os.getpid(), started=1.0).alive, "another process that was given the number later"


def test_a_zombie_does_not_hold_a_run_where_there_are_no_locks(zombie: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryObjects()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: zombie)
        write_controller(store, attempt=1, nonce="n")
    holder = read_controller(store)
    assert holder is not None
    assert holder.pid == zombie
    hold(store, store, "state_log.jsonl")()
    write_controller(store, attempt=2, nonce="m")
    with pytest.raises(RunBusy):
        hold(store, store, "state_log.jsonl")


def test_a_draft_of_a_zombie_is_removed(zombie: int, tmp_path: Path) -> None:
    for pid in (zombie, os.getppid()):
        (tmp_path / f".model.{pid}.draft").write_text("half")
    _draft_of(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [f".model.{os.getppid()}.draft"]
