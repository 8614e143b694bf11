"""What outlives a controller: time, nodes, the store below, and the batches that workers committed to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from ...types import BatchKey, BatchRef, BatchSpec, WorkerId
from ..memory import MemoryFiles
from .clock import Clock
from .files import Outage
from .scenario import Scenario

FIRST_POLICY = "policy:0"


class ControllerKilled(BaseException):
    """The controller's process is gone at this moment."""


class SimulationOver(BaseException):
    """The hours of the scenario have passed."""


@dataclass(slots=True)
class Node:
    """Where workers live. ``up_at``: when it is (or was) fit for new ones."""

    up_at: float = 0.0
    broken: bool = False  # since its last repair or replacement
    slow_until: float = 0.0
    cut_off_until: float = 0.0


@dataclass(slots=True)
class World:
    """``dice`` draws the faults; what work takes, and what it makes, are functions of the seed alone."""

    scenario: Scenario
    clock: Clock
    dice: random.Random
    files: MemoryFiles
    outage: Outage
    rollout_nodes: list[Node]
    train_nodes: list[Node]
    batches: dict[BatchKey, BatchRef]
    seen: Counter[str]  # faults that were injected, by kind; other things that were counted
    spares: int = 0
    messages: int = 0  # between controllers and workers

    @classmethod
    def new(cls, scenario: Scenario) -> World:
        clock = Clock()
        rollout = -(-scenario.rollout_workers // scenario.workers_per_node)
        train = -(-scenario.train_ranks // scenario.ranks_per_node)
        return cls(
            scenario,
            clock,
            random.Random(scenario.seed),
            MemoryFiles("memory://simulation", clock=clock.wall),
            Outage(),
            [Node() for _ in range(rollout)],
            [Node() for _ in range(train)],
            {},
            Counter(),
            scenario.spare_nodes,
        )

    def node_of(self, worker: WorkerId) -> Node:
        if worker.role == "rollout":
            return self.rollout_nodes[worker.index // self.scenario.workers_per_node]
        return self.train_nodes[worker.index // self.scenario.ranks_per_node]

    def claim_node(self, worker: WorkerId) -> float:
        """When a worker can be started: at once, on a spare node in place of a broken one, or after the repair."""
        node = self.node_of(worker)
        if node.broken and self.spares > 0:
            self.spares -= 1
            node.broken, node.up_at = False, self.clock.now()
            self.clock.after(self.scenario.timing.repair, self._back)
        elif node.broken and self.clock.now() >= node.up_at:
            node.broken = False
        return max(self.clock.now(), node.up_at)

    def _back(self) -> None:
        self.spares += 1

    def commit(self, spec: BatchSpec, policy: str, attempt: int) -> BatchRef:
        """Create-once, as a store does it: the first wins; a later one with other content is counted as a mix."""
        digest = samples_hash(self.scenario.seed, spec.key, spec.policy_version, policy)
        there = self.batches.get(spec.key)
        if there is not None:
            self.seen["late commits dropped"] += 1
            self.seen["mixes"] += there.samples_hash != digest
            return there
        count = len(spec.rows) * self.scenario.samples_per_prompt
        ref = BatchRef(spec.key, 0, attempt, spec.policy_version, digest, count, count, 0.5, spec.rows)
        self.batches[spec.key] = ref
        return ref

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        yield from (self.batches[key] for key in sorted(self.batches.keys() - set(known)))


def samples_hash(seed: int, key: BatchKey, version: int, policy: str) -> str:
    """What a batch holds, in one hash: it depends on the weights that the worker really had."""
    return f"blake3:{blake3(f'{seed}|{key.epoch}|{key.batch}|{version}|{policy}'.encode()).hexdigest()}"


def next_policy(policy: str, step: int, hashes: Iterable[str]) -> str:
    """The policy after a training step on batches with these hashes."""
    text = "|".join((policy, str(step), *hashes))
    return f"policy:{blake3(text.encode()).hexdigest(16)}"
