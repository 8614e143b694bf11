"""One start of the real controller in the simulated world: the same parts as in ``assemble``, on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from ...alerts import Alerts
from ...assemble import committed_batches, start_from
from ...checkpoint.keeper import Keeper
from ...checkpoint.sharded import ShardedCheckpointer
from ...checkpoint.when import SaveRule
from ...errors import VerlError
from ...fleet import Fleet
from ...loop import Controller
from ...observers import Observers
from ...parts import Parts
from ...plugins import load
from ...protocols import Worker
from ...recovery.supervisor import decide
from ...registry import RECOVERY
from ...rollout.handover import HandOver
from ...state import events as ev
from ...state.folder import CHECKPOINTS, LOG, OpenRun, open_run
from ...state.history import History
from ...state.journal import Journal
from ...state.machine import Plan, State, evaluation_key
from ...state.runtime import RuntimeFile
from ...state.schedule import Schedule
from ...types import BatchKey, BatchRef, BatchSpec, BuildContext, Decision, Fault, RunIdentity, Sample, StagedBatch
from .cluster import SimulatedCluster
from .files import AttemptFiles
from .scenario import Scenario
from .world import World
from .writes import SimulatedWrites

KEEP, VERSION, FOREVER = 3, "simulated", 10**9


class Attempt:
    """A controller that may be killed. Raises what ``open_run`` raises."""

    def __init__(self, world: World) -> None:
        self._alive, self._world = True, world
        scenario = world.scenario
        files = AttemptFiles(world.files, world.outage, world.clock, lambda: self._alive)
        run = open_run(files, files, LOG, resume="auto", code_version=VERSION)
        self.history = run.history
        self._unlock = run.unlock
        limits = scenario.fault_tolerance.severity_thresholds
        self.writes = SimulatedWrites(world.clock, scenario.timing.write, limits.rollout_storage_down_sec)
        self.cluster = SimulatedCluster(world, run.attempt)
        self.controller = Controller(_parts(world, run, files, self.writes, self.cluster))

    def die(self) -> None:
        """kill -9: nothing more of it reaches the store, and its lock falls."""
        self._alive = False
        self.writes.die()
        self.cluster.controller_died()
        self._unlock()


def _parts(
    world: World, run: OpenRun, files: AttemptFiles, writes: SimulatedWrites, cluster: SimulatedCluster
) -> Parts:
    scenario, clock = world.scenario, world.clock
    schedule, observers = schedule_of(scenario), Observers()
    checkpointer = ShardedCheckpointer(files.child(CHECKPOINTS), RunIdentity(run.run_id, 0, run.attempt))
    keeper = Keeper(checkpointer, writes, KEEP)
    store = _Batches(world)
    identity = (run.run_id, 0, run.attempt, run.nonce)
    return Parts(
        run_uri=files.uri,
        plan=plan_of(scenario, schedule),
        opened=ev.Opened(1, "simulated", VERSION, "", "", FOREVER),
        branch=0,
        attempt=run.attempt,
        exact=True,
        durable=True,
        cluster=cluster,
        fleet=Fleet(cluster, lambda worker: _never, scenario.rollout_workers, scenario.train_ranks),
        store=HandOver(store, writes),
        keeper=keeper,
        journal=Journal(files, LOG, run.log, writes, identity=identity, wall=clock.wall),
        runtime=RuntimeFile(files, writes, FOREVER, lambda step: b""),
        writes=writes,
        history=run.history,
        committed=committed_batches(store, run.history, schedule),
        sweep=lambda: [*checkpointer.sweep()],
        start=partial(start_from, "auto", keeper, run.history, files.uri),
        save_files=lambda step: {},
        decide=_decider(scenario, cluster),
        eval_spec=lambda step: BatchSpec(evaluation_key(step), step, ()),
        observers=observers,
        alerts=Alerts([], observers, clock.now),
        metrics=[],
        release=run.release,
    )


def schedule_of(scenario: Scenario) -> Schedule:
    per_step = scenario.batches_per_step * scenario.prompts_per_batch
    return Schedule(scenario.seed, tuple(range(scenario.prompts)), scenario.prompts_per_batch, per_step, True, FOREVER)


def plan_of(scenario: Scenario, schedule: Schedule) -> Plan:
    limits = scenario.fault_tolerance
    timeouts = {
        State.PREPARE: limits.prepare_timeout_sec,
        State.COLLECT: limits.rollout_timeout_sec,
        State.TRAIN: limits.train_timeout_sec,
        State.EVAL: limits.eval_timeout_sec,
    }
    return Plan(schedule, FOREVER, FOREVER, SaveRule.every(limits.checkpoint_interval_steps), 0, timeouts)


def _decider(scenario: Scenario, cluster: SimulatedCluster) -> Callable[[Fault, History], Decision]:
    limits = scenario.fault_tolerance
    names = limits.recovery or ["retry", "rebuild"]
    registry = load(names, defaults=False).registry
    policies = [registry.build(RECOVERY, name, {}, BuildContext()) for name in registry.names(RECOVERY)]
    return lambda fault, history: decide(fault, history, limits, policies, cluster.wall())


def _never() -> Worker:
    """Simulated workers are not built: the cluster plays them."""
    raise VerlError("a simulated worker is not built")


class _Batches:
    """The ``RolloutWriter`` of the controller: workers commit by themselves, it only looks what is there."""

    def __init__(self, world: World) -> None:
        self._world = world

    def stage(self, spec: BatchSpec, samples: Sequence[Sample], *, worker: str, seed: int) -> StagedBatch:
        raise VerlError("workers commit by themselves", where=str(spec.key))

    def commit(self, staged: StagedBatch) -> BatchRef:
        raise VerlError("workers commit by themselves", where=str(staged.ref.key))

    def load(self, ref: BatchRef) -> list[Sample]:
        raise VerlError("simulated batches have no samples", where=str(ref.key))

    def scan(self, known: Collection[BatchKey] = ()) -> Iterator[BatchRef]:
        return self._world.scan(known)

    def sweep(self) -> Sequence[str]:
        return ()

    def condemn(self, ref: BatchRef) -> str:
        raise VerlError("simulated batches are never damaged", where=str(ref.key))
