"""When faults come and what they do: exponential gaps, kinds by weight, all drawn from the scenario's seed."""

from __future__ import annotations

from collections.abc import Callable

from .attempt import Attempt
from .world import ControllerKilled, Node, World

KINDS = ("rollout_node", "train_node", "hang", "slow", "partition", "storage", "clock", "controller")


class Faults:
    """Injects faults into the world for as long as the simulation lasts. ``attempt`` is the living one."""

    def __init__(self, world: World, mean_gap_s: float) -> None:
        self._world, self._gap_s = world, mean_gap_s
        self._mix = world.scenario.faults
        self.attempt: Attempt | None = None
        if mean_gap_s > 0:
            self._next()

    def _next(self) -> None:
        self._world.clock.after(self._world.dice.expovariate(1 / self._gap_s), self._strike)

    def _strike(self) -> None:
        self._next()
        weights = [getattr(self._mix, kind) for kind in KINDS]
        kind = self._world.dice.choices(KINDS, weights)[0]
        self._world.seen[kind] += 1
        effects: dict[str, Callable[[], None]] = {
            "rollout_node": lambda: self._lose(self._world.rollout_nodes),
            "train_node": lambda: self._lose(self._world.train_nodes),
            "hang": self._hang,
            "slow": self._slow,
            "partition": self._cut_off,
            "storage": self._storage,
            "clock": self._jump,
            "controller": self._kill,
        }
        effects[kind]()

    def _lose(self, nodes: list[Node]) -> None:
        node = self._world.dice.choice(nodes)
        node.broken, node.up_at = True, self._world.clock.now() + self._world.scenario.timing.repair
        if self.attempt is not None:
            self.attempt.cluster.lose_node(node)

    def _hang(self) -> None:
        if self.attempt is not None:
            self.attempt.cluster.hang(self._world.dice.randrange(1 << 30))

    def _slow(self) -> None:
        node = self._world.dice.choice(self._world.rollout_nodes + self._world.train_nodes)
        node.slow_until = self._world.clock.now() + self._mix.slow_for

    def _cut_off(self) -> None:
        node = self._world.dice.choice(self._world.rollout_nodes)
        node.cut_off_until = self._world.clock.now() + self._mix.partition_for

    def _storage(self) -> None:
        self._world.outage.until = self._world.clock.now() + self._mix.storage_for

    def _jump(self) -> None:
        self._world.clock.jump(self._world.dice.uniform(-1, 1) * self._mix.clock_jump)

    def _kill(self) -> None:
        if self.kill_controller():
            raise ControllerKilled

    def kill_controller(self) -> bool:
        """The process is gone from this moment on; False when none was at work."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self._world.messages += attempt.cluster.messages
            attempt.die()
        return attempt is not None
