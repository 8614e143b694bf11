"""The fleet: who holds which weights, who is at which batch, and that a worker which comes back is told everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verl_core.errors import WorkerError
from verl_core.fleet import Fleet
from verl_core.protocols import Worker
from verl_core.types import BatchKey, BatchSpec, Reply, WorkerId
from verl_core.workers import Weights

FIRST, SECOND = WorkerId("rollout", 0), WorkerId("rollout", 1)


class Hands:
    """A ``Cluster`` that does nothing by itself: calls are written down, answers are given by the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, str, object]] = []
        self.spawned: list[WorkerId] = []
        self.answers: list[Reply] = []
        self.time = 0.0

    def spawn(self, worker: WorkerId, factory: Callable[[], Worker]) -> None:
        self.spawned.append(worker)

    def submit(self, worker: WorkerId, method: str, argument: object) -> int:
        self.sent.append((worker, method, argument))
        return len(self.sent)

    def poll(self, timeout_s: float) -> Reply | None:
        return self.answers.pop(0) if self.answers else None

    def alive(self) -> Sequence[WorkerId]:
        return self.spawned

    def kill(self, worker: WorkerId) -> None: ...

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time

    def close(self) -> None: ...


def fleet(workers: int = 2) -> tuple[Fleet, Hands]:
    hands = Hands()
    made = Fleet(hands, lambda worker: lambda: Nobody(), workers, 1)
    made.start()
    return made, hands


class Nobody:
    def call(self, method: str, argument: object) -> object:
        return None

    def close(self) -> None: ...


def weights(version: int) -> Callable[[], Weights]:
    return lambda: Weights(version, [])


def told(hands: Hands) -> list[tuple[WorkerId, int]]:
    """Who was sent which version."""
    return [(worker, argument.version) for worker, _, argument in hands.sent if isinstance(argument, Weights)]


def specs(*batches: int) -> list[BatchSpec]:
    return [BatchSpec(BatchKey(0, batch), 0, (batch,)) for batch in batches]


def test_each_version_is_sent_once_to_every_worker() -> None:
    made, hands = fleet()
    for version in (0, 0, 1, 1, 2):
        made.publish(weights(version), version)
    assert told(hands) == [(worker, version) for version in (0, 1, 2) for worker in (FIRST, SECOND)]


def test_weights_are_asked_for_only_when_somebody_lacks_them() -> None:
    made, _ = fleet()
    asked: list[int] = []

    def ask() -> Weights:
        asked.append(1)
        return Weights(0, [])

    made.publish(ask, 0)
    made.publish(ask, 0)
    assert asked == [1]


def test_a_worker_that_was_replaced_is_sent_the_weights_again_and_the_others_are_not() -> None:
    made, hands = fleet()
    made.publish(weights(3), 3)
    made.replace(SECOND)
    made.publish(weights(3), 3)
    assert told(hands) == [(FIRST, 3), (SECOND, 3), (SECOND, 3)]


def test_a_worker_that_could_not_take_the_weights_is_sent_them_again() -> None:
    made, hands = fleet(1)
    made.publish(weights(3), 3)
    hands.answers.append(Reply(1, FIRST, error=WorkerError("half of it came")))
    assert made.poll(1.0) is not None
    made.publish(weights(3), 3)
    assert told(hands) == [(FIRST, 3), (FIRST, 3)]


def test_batches_are_shared_out() -> None:
    made, hands = fleet()
    made.generate(specs(0, 1, 2, 3), step=1)
    assert [worker for worker, *_ in hands.sent] == [FIRST, SECOND, FIRST, SECOND]


def test_who_holds_a_missing_batch_is_replaced_and_all_that_it_held_is_missing() -> None:
    made, hands = fleet()
    made.generate(specs(0, 1, 2, 3), step=1)
    hands.spawned.clear()
    assert made.replace_holders([BatchKey(0, 2)]) == (BatchKey(0, 0), BatchKey(0, 2))
    assert hands.spawned == [FIRST]


def test_what_a_replaced_worker_says_is_not_heard() -> None:
    made, hands = fleet(1)
    made.generate(specs(0), step=1)
    made.replace(FIRST)
    hands.answers.append(Reply(1, FIRST, value="too late"))
    assert made.poll(0.0) is None
