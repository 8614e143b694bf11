"""Cluster ``inline``: replies, errors and lost workers, with the controller never blocked."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from verl_core.errors import WorkerLost
from verl_core.types import WorkerId
from verl_core_engines.inline import InlineCluster

WORKER = WorkerId("rollout", 0)


@dataclass
class Echo:
    """Answers with its argument; ``stick`` waits for ``gate``, ``fail`` raises."""

    gate: threading.Event
    closed: list[bool]
    stuck: threading.Event = field(default_factory=threading.Event)

    def call(self, method: str, argument: object) -> object:
        if method == "stick":
            self.stuck.set()
            self.gate.wait(10)
        if method == "fail":
            raise ValueError(argument)
        return argument

    def close(self) -> None:
        self.closed.append(True)


def test_calls_answer_in_order_and_errors_come_as_replies() -> None:
    cluster, gate, closed = InlineCluster(), threading.Event(), list[bool]()
    cluster.spawn(WORKER, lambda: Echo(gate, closed))
    first, second = cluster.submit(WORKER, "echo", 1), cluster.submit(WORKER, "fail", "why")
    a, b = cluster.poll(5), cluster.poll(5)
    assert a is not None
    assert (a.call, a.value, a.error) == (first, 1, None)
    assert b is not None
    assert (b.call, str(b.error)) == (second, "why")
    cluster.close()
    assert closed == [True]


def test_nothing_to_hear_ends_at_the_deadline() -> None:
    cluster = InlineCluster()
    begin = cluster.now()
    assert cluster.poll(0.05) is None
    assert 0.04 < cluster.now() - begin < 2


def test_a_killed_worker_is_not_heard_and_its_successor_is() -> None:
    cluster, gate, closed, stuck = InlineCluster(), threading.Event(), list[bool](), threading.Event()
    cluster.spawn(WORKER, lambda: Echo(gate, closed, stuck))
    cluster.submit(WORKER, "stick", "old")
    assert stuck.wait(5)
    cluster.spawn(WORKER, lambda: Echo(gate, closed))
    number = cluster.submit(WORKER, "echo", "new")
    gate.set()
    reply = cluster.poll(5)
    assert reply is not None
    assert (reply.call, reply.value) == (number, "new")
    assert cluster.poll(0.2) is None, "the old one's answer comes too late"
    cluster.kill(WORKER)
    with pytest.raises(WorkerLost):
        cluster.submit(WORKER, "echo", 1)
    cluster.close()


def test_a_worker_that_cannot_be_built_says_so_at_each_call() -> None:
    cluster = InlineCluster()

    def broken() -> Echo:
        raise OSError("no model")

    cluster.spawn(WORKER, broken)
    for _ in range(2):
        cluster.submit(WORKER, "echo", 1)
        reply = cluster.poll(5)
        assert reply is not None
        assert str(reply.error) == "no model"
    cluster.close()
