"""Uploads share the slots of their node, whatever process they are in, and give them back."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from verl_core_storage import posix, slots

from tests.services.fixtures import open_s3, prefix
from tests.services.proxy import FaultProxy
from tests.services.seaweed import Seaweed


@pytest.fixture(autouse=True)
def own_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slots of this test alone."""
    monkeypatch.setattr(slots, "node_folder", lambda: str(tmp_path / "slots"))
    return tmp_path / "slots"


def test_uploads_of_all_processes_of_a_node_take_turns(s3_proxy: FaultProxy, own_slots: Path) -> None:
    """Three processes with four uploads each, two slots, 0.2 s an answer: at least six turns of 0.2 s."""
    uri = f"s3://runs/{prefix()}"
    open_s3(uri, max_concurrent_uploads=2).put("first", b"1")
    s3_proxy.set("latency", seconds=0.2)
    begin = time.monotonic()
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                storage = open_s3(uri, max_concurrent_uploads=2)
                storage.stat("warm")
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(partial(storage.put, data=b"1"), [f"{child}-{n}" for n in range(4)]))
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert time.monotonic() - begin >= 6 * 0.2
    assert sorted(os.listdir(own_slots)) == ["slot-0", "slot-1"]
    assert len(list(open_s3(uri).list())) == 13


def test_a_process_that_dies_gives_its_slot_back(s3_env: Seaweed, own_slots: Path) -> None:
    storage = open_s3(f"s3://runs/{prefix()}", max_concurrent_uploads=1)
    storage.put("first", b"1")
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        posix.lock(str(own_slots / "slot-0"))
        os.write(tell, b"r")
        signal.pause()
    os.read(ready, 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(storage.put, "second", b"2")
        time.sleep(0.5)
        assert not waiting.done(), "the slot is taken"
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert waiting.result(10) == 1


def test_waiting_for_a_slot_is_no_time_of_the_store_and_no_alert(s3_env: Seaweed, own_slots: Path) -> None:
    told: list[object] = []
    storage = open_s3(
        f"s3://runs/{prefix()}", max_concurrent_uploads=1, timeout_s=5, alert_after_s=2, on_wait=told.append
    )
    storage.put("first", b"1")
    release = posix.lock(str(own_slots / "slot-0"))
    assert release is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(storage.put, "second", b"2")
        time.sleep(6)
        assert not waiting.done()
        release()
        assert waiting.result(10) == 1
    assert told == []


def test_large_objects_go_up_in_parts_of_which_no_more_than_the_slots_are_under_way(s3_env: Seaweed) -> None:
    storage = open_s3(f"s3://runs/{prefix()}", max_concurrent_uploads=2, part_mib=5)
    data = os.urandom(33 << 20)
    assert storage.put("a", data) == len(data)
    key = storage.uri.removeprefix("s3://runs/")
    assert s3_env.client().head_object(Bucket="runs", Key=f"{key}/a")["ETag"].endswith('-7"')
    assert storage.get("a") == data
    assert storage.get("a", 5 << 20, 29 << 20) == data[5 << 20 : 29 << 20]
