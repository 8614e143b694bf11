"""The workers as the loop sees them: who does what, under which call number. It knows the cluster, not the machine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

from .errors import WorkerError, WorkerLost
from .protocols import Cluster, Worker
from .types import BatchKey, BatchSpec, Reply, WorkerId
from .workers import Weights


@dataclass(frozen=True, slots=True)
class Call:
    """What a call number stands for."""

    worker: WorkerId
    method: str
    step: int
    keys: tuple[BatchKey, ...] = ()


class Fleet:
    """Rollout workers and the ranks of the training group on one cluster."""

    def __init__(
        self, cluster: Cluster, factory: Callable[[WorkerId], Callable[[], Worker]], rollout: int, ranks: int
    ) -> None:
        self._cluster, self._factory = cluster, factory
        self.rollout = [WorkerId("rollout", i) for i in range(rollout)]
        self.train = [WorkerId("train", i) for i in range(ranks)]
        self.calls: dict[int, Call] = {}
        self._heard: deque[Reply] = deque()  # replies that came while ranks were waited for
        self._version: dict[WorkerId, int] = {}
        self._lost: set[WorkerId] = set()  # known to be gone, not yet replaced
        self._starting: set[WorkerId] = set()  # replaced, and not heard of since

    def start(self) -> None:
        for worker in self.train + self.rollout:
            self._cluster.spawn(worker, self._factory(worker))

    def ask_ranks(self, method: str, argument: object, timeout_s: float) -> list[object]:
        """Call every rank and wait for all. Raises the first error, or WorkerError past the deadline."""
        numbers = [self._cluster.submit(rank, method, argument) for rank in self.train]
        values: dict[int, object] = {}
        deadline = self._cluster.now() + timeout_s
        while len(values) < len(numbers):
            reply = self._cluster.poll(deadline - self._cluster.now())
            if reply is None:
                raise WorkerError(f"no answer to {method!r} within {timeout_s:g} s", where="training group")
            if reply.call not in numbers:
                self._heard.append(reply)
                continue
            if reply.error is not None:
                raise reply.error
            values[reply.call] = reply.value
        return [values[n] for n in numbers]

    def restart_ranks(self) -> None:
        """Start the training group anew; what its ranks were at is forgotten, and so is what workers know of them."""
        for rank in self.train:
            self.replace(rank)

    def begin_step(self, step: int, argument: object) -> None:
        for rank in self.train:
            self.calls[self._cluster.submit(rank, "step", argument)] = Call(rank, "step", step)

    def stepping(self) -> bool:
        """Whether ranks are still at a step."""
        return any(call.method == "step" for call in self.calls.values())

    def publish(self, weights: Callable[[], Weights], version: int) -> None:
        """Send the policy of ``version`` to every rollout worker that does not hold it yet."""
        stale = [w for w in self.rollout if self._version.get(w) != version]
        if not stale:
            return
        message = weights()
        for worker in stale:
            number = self._send(worker, "weights", message)
            self.calls[number] = Call(worker, "weights", version + 1)
            self._version[worker] = version

    def generate(self, specs: Sequence[BatchSpec], step: int) -> None:
        """Hand batches to the workers in turn: first to those that hold the least, last to those just started."""
        held = Counter(call.worker for call in self.calls.values() if call.keys)
        turns = cycle(sorted(self.rollout, key=lambda worker: (held[worker], worker in self._starting)))
        for spec, worker in zip(specs, turns, strict=False):
            self._submit(worker, "generate", spec, step)

    def evaluate(self, spec: BatchSpec, step: int) -> None:
        held = Counter(call.worker for call in self.calls.values() if call.keys)
        self._submit(min(self.rollout, key=lambda w: (held[w], w in self._starting)), "evaluate", spec, step)

    def replace(self, worker: WorkerId) -> None:
        """Kill and respawn a worker; its calls are forgotten, and it is sent the weights again."""
        self._cluster.spawn(worker, self._factory(worker))
        self._version.pop(worker, None)
        self._lost.discard(worker)
        self._starting.add(worker)
        self.calls = {n: c for n, c in self.calls.items() if c.worker != worker}

    def held(self, worker: WorkerId) -> tuple[BatchKey, ...]:
        """The batches that a worker was given and has not answered for."""
        return tuple(sorted(key for call in self.calls.values() if call.worker == worker for key in call.keys))

    def replace_holders(self, keys: Sequence[BatchKey]) -> tuple[BatchKey, ...]:
        """Replace the workers that hold these batches, or are gone; returns all batches that nobody holds now."""
        wanted = set(keys)
        holders = {c.worker for c in self.calls.values() if not wanted.isdisjoint(c.keys)} | self._lost
        lost = {k for c in self.calls.values() if c.worker in holders for k in c.keys}
        for worker in holders:
            self.replace(worker)
        return tuple(sorted(lost | set(keys)))

    def poll(self, timeout_s: float) -> tuple[Call, Reply] | None:
        """The next answer that somebody waits for, or None after ``timeout_s``."""
        deadline = self._cluster.now() + timeout_s
        while True:
            reply = self._heard.popleft() if self._heard else self._cluster.poll(deadline - self._cluster.now())
            if reply is None:
                return None
            if reply.call in self.calls:
                call = self.calls.pop(reply.call)
                self._take_note(call, reply)
                return call, reply

    def _take_note(self, call: Call, reply: Reply) -> None:
        self._starting.discard(call.worker)
        if isinstance(reply.error, WorkerLost):
            self._lost.add(call.worker)
        if reply.error is not None and call.method == "weights":
            self._version.pop(call.worker, None)  # they are sent again before it generates
        if reply.error is not None and call.method == "step":  # what the other ranks say of it is not news
            self.calls = {number: other for number, other in self.calls.items() if other.method != "step"}

    def _submit(self, worker: WorkerId, method: str, spec: BatchSpec, step: int) -> None:
        self.calls[self._send(worker, method, spec)] = Call(worker, method, step, (spec.key,))

    def _send(self, worker: WorkerId, method: str, argument: object) -> int:
        """Submit; a worker that turns out to be gone is replaced first."""
        try:
            return self._cluster.submit(worker, method, argument)
        except WorkerLost:
            self.replace(worker)
            return self._cluster.submit(worker, method, argument)
