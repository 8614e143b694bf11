"""Everything that a run is made of, wired by ``assemble`` and driven by ``loop``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .alerts import Alerts
from .checkpoint.age import SaveAge
from .checkpoint.keeper import Keeper
from .fleet import Fleet
from .observers import Observers
from .protocols import CheckpointReader, Cluster, MetricSink
from .rollout.handover import HandOver
from .state.events import Opened
from .state.history import History
from .state.journal import Journal
from .state.machine import Plan
from .state.runtime import RuntimeFile
from .types import BatchKey, BatchRef, BatchSpec, CheckpointRef, Decision, Fault
from .writes import Writes

Found = tuple[CheckpointRef, CheckpointReader]
Condemn = Callable[[CheckpointRef, str], None]


@dataclass(frozen=True, slots=True)
class Parts:
    """One run of one controller."""

    run_uri: str
    plan: Plan
    opened: Opened
    branch: int
    attempt: int
    exact: bool
    durable: bool  # batches are committed (fault tolerance on)
    cluster: Cluster
    fleet: Fleet
    store: HandOver
    keeper: Keeper
    journal: Journal
    runtime: RuntimeFile
    writes: Writes
    history: History
    committed: dict[BatchKey, BatchRef]  # found on storage at the start, checked against the schedule
    sweep: Callable[[], list[str]]  # remove what dead attempts left half-made
    start: Callable[[Condemn, bool], Found | None]  # which checkpoint to load; True: again, within the attempt
    save_files: Callable[[int], dict[str, bytes]]  # beside the weights, at a step
    decide: Callable[[Fault, History], Decision]
    eval_spec: Callable[[int], BatchSpec]
    observers: Observers
    alerts: Alerts
    metrics: Sequence[MetricSink]
    release: Callable[[], None]  # of the run's lock
    restored: Callable[[int], None] = lambda step: None  # tells what a start goes on with
    save_age: SaveAge = field(default_factory=SaveAge)
