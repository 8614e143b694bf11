"""Workers in virtual time: a ``Cluster`` whose nodes fail, hang, slow down and are cut off."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from ...draws import seed_of
from ...errors import VerlError, WorkerError, WorkerLost
from ...protocols import CheckpointReader, Worker
from ...types import BatchKey, BatchSpec, PlatformKey, Reply, StepResult, UpdateMetrics, WorkerId
from ...workers import Loaded, RankState, StepCall, Weights
from .scenario import Scenario
from .world import FIRST_POLICY, Node, World, next_policy

STATE_FILE = "simulated.txt"  # of a rank: its policy
PLATFORM = PlatformKey("simulated", "0", 1, "float32", 1, "simulated")


@dataclass(slots=True, eq=False)
class Instance:
    """One life of a worker. ``heard``: the controller still listens to it; a replaced one may go on unheard."""

    worker: WorkerId
    node: Node
    ready_at: float
    version: int = 0
    policy: str = FIRST_POLICY
    alive: bool = True
    heard: bool = True
    hung: bool = False
    busy: bool = False
    inbox: deque[tuple[int, str, object]] = field(default_factory=deque)


class SimulatedCluster:
    """A ``Cluster``. Virtual time passes in ``poll`` only; that is also where a controller is killed."""

    def __init__(self, world: World, attempt: int) -> None:
        self._world, self._clock, self._attempt = world, world.clock, attempt
        self._timing = world.scenario.timing
        self._instances: dict[WorkerId, Instance] = {}
        self._replies: deque[Reply] = deque()
        self._numbers = itertools.count(1)
        self.messages = 0

    # --- what the controller calls -------------------------------------------------------------

    def spawn(self, worker: WorkerId, factory: Callable[[], Worker]) -> None:
        self.kill(worker)
        start = self._timing.worker_start if worker.role == "rollout" else self._timing.rank_start
        ready = self._world.claim_node(worker) + start
        self._instances[worker] = Instance(worker, self._world.node_of(worker), ready)

    def submit(self, worker: WorkerId, method: str, argument: object) -> int:
        instance = self._instances.get(worker)
        if instance is None or (not instance.alive and not instance.inbox):
            raise WorkerLost("it is gone", where=str(worker))
        number = next(self._numbers)
        self.messages += 1
        instance.inbox.append((number, method, argument))
        if not instance.alive:  # the cluster has not noticed yet
            self._clock.after(self._timing.detect, partial(self._lose, instance))
        elif not instance.busy:
            self._begin(instance)
        return number

    def poll(self, timeout_s: float) -> Reply | None:
        deadline = self._clock.now() + max(timeout_s, 0.0)
        while not self._replies:
            if not self._clock.step(deadline):
                return None
        self.messages += 1
        return self._replies.popleft()

    def alive(self) -> Sequence[WorkerId]:
        return [worker for worker, instance in self._instances.items() if instance.alive]

    def kill(self, worker: WorkerId) -> None:
        """A worker that is cut off is not reached: it finishes what it is at, unheard."""
        instance = self._instances.pop(worker, None)
        if instance is not None:
            instance.heard = False
            if self._clock.now() >= instance.node.cut_off_until:
                instance.alive = False

    def now(self) -> float:
        return self._clock.now()

    def wall(self) -> float:
        return self._clock.wall()

    def close(self) -> None:
        for worker in list(self._instances):
            self.kill(worker)

    # --- what happens to workers ---------------------------------------------------------------

    def controller_died(self) -> None:
        """Workers are orphans: every second one still finishes what it is at, and commits it."""
        for number, instance in enumerate(self._instances.values()):
            instance.heard = False
            instance.alive = instance.alive and number % 2 == 0
            while len(instance.inbox) > 1:
                instance.inbox.pop()
        self._instances.clear()

    def lose_node(self, node: Node) -> None:
        """All workers of a node are gone at once; the cluster notices a little later."""
        for instance in self._instances.values():
            if instance.node is node and instance.alive:
                instance.alive = False
                self._clock.after(self._timing.detect, partial(self._lose, instance))

    def hang(self, index: int) -> None:
        """One worker answers nothing any more."""
        instances = list(self._instances.values())
        if instances:
            instances[index % len(instances)].hung = True

    def _lose(self, instance: Instance) -> None:
        """The cluster reports the loss: every call ends in an error, and peers of a rank break off their step."""
        error = WorkerLost("its node is gone", where=str(instance.worker))
        while instance.inbox:
            self._answer(instance, Reply(instance.inbox.popleft()[0], instance.worker, error=error))
        if instance.worker.role == "train":
            for peer in self._instances.values():
                stepping = peer.worker.role == "train" and peer.inbox and peer.inbox[0][1] == "step"
                if stepping and peer.alive:
                    number, _, _ = peer.inbox.popleft()
                    peer.busy = False
                    lost = WorkerError(f"{instance.worker} left the step", where=str(peer.worker))
                    self._answer(peer, Reply(number, peer.worker, error=lost))

    # --- work ----------------------------------------------------------------------------------

    def _begin(self, instance: Instance) -> None:
        instance.busy = True
        number, method, argument = instance.inbox[0]
        now = self._clock.now()
        seconds = self._seconds(instance.worker, method, argument)
        if now < instance.node.slow_until:
            seconds *= self._world.scenario.faults.slow_factor
        self._clock.after(max(instance.ready_at - now, 0.0) + seconds, partial(self._end, instance, number))

    def _end(self, instance: Instance, number: int) -> None:
        if not instance.alive or instance.hung or not instance.inbox or instance.inbox[0][0] != number:
            return
        _, method, argument = instance.inbox.popleft()
        if method == "step" and not self._whole_group():
            instance.inbox.appendleft((number, method, argument))  # a collective waits for all
            return
        try:
            reply = Reply(number, instance.worker, self._work(instance, method, argument))
        except VerlError as error:
            reply = Reply(number, instance.worker, error=error)
        self._answer(instance, reply)
        instance.busy = False
        if instance.inbox:
            self._begin(instance)

    def _whole_group(self) -> bool:
        group = (self._instances.get(WorkerId("train", rank)) for rank in range(self._world.scenario.train_ranks))
        return all(rank is not None and rank.alive and not rank.hung for rank in group)

    def _answer(self, instance: Instance, reply: Reply) -> None:
        if instance.heard:
            delay = max(instance.node.cut_off_until - self._clock.now(), 0.0) + self._timing.reply
            self._clock.after(delay, partial(self._arrive, instance, reply))

    def _arrive(self, instance: Instance, reply: Reply) -> None:
        if instance.heard:
            self._replies.append(reply)

    def _seconds(self, worker: WorkerId, method: str, argument: object) -> float:
        timing = self._timing
        match method:
            case "generate":
                return generation_s(self._world.scenario, cast(BatchSpec, argument).key)
            case "weights":
                return timing.weights if worker.role == "rollout" else 0.0
            case "step":
                return timing.train
            case "load":
                return timing.load
            case _:
                return timing.copy_state

    def _work(self, instance: Instance, method: str, argument: object) -> object:
        """What the real workers do, with a policy that is one hash (see ``verl_core.workers``)."""
        match method, argument:
            case "generate", BatchSpec():
                if instance.version != argument.policy_version:
                    raise WorkerError(f"asked for policy {argument.policy_version}, holds {instance.version}")
                return self._world.commit(argument, instance.policy, self._attempt)
            case "weights", Weights():
                instance.version, instance.policy = argument.version, next(iter(argument.tensors))[0]
                return instance.version
            case "weights", _:
                return Weights(instance.version, [(instance.policy, None)])  # type: ignore[list-item]
            case "load", _:
                if argument is not None:
                    reader = cast(CheckpointReader, argument)
                    instance.version, instance.policy = reader.step, reader.file(f"actor/{STATE_FILE}").decode()
                return Loaded(instance.policy, PLATFORM)
            case "step", StepCall():
                return self._train(instance, argument)
            case _:
                files = {f"actor/{STATE_FILE}": instance.policy.encode()}
                return RankState({}, files, b"", instance.policy)

    def _train(self, instance: Instance, call: StepCall) -> StepResult:
        if instance.version >= call.step:
            raise WorkerError(f"step {call.step} was taken already", where=str(instance.worker))
        hashes = [ref.samples_hash for ref in call.refs]
        instance.version, instance.policy = call.step, next_policy(instance.policy, call.step, hashes)
        metrics = UpdateMetrics(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, sum(ref.token_count for ref in call.refs))
        return StepResult(call.step, metrics, instance.policy, 0.5, self._timing.train)


def generation_s(scenario: Scenario, key: BatchKey) -> float:
    """Virtual seconds that a batch takes wherever it is made: the mean times a log-normal factor, whose normal is the
    sum of twelve uniform draws."""
    bits = seed_of(scenario.seed, "simulated time", key.epoch, key.batch)
    normal = sum((bits >> (5 * i)) & 31 for i in range(12)) / 31 - 6
    factor = float(2.718281828459045 ** (scenario.timing.generate_sigma * normal))
    return scenario.timing.generate * factor
