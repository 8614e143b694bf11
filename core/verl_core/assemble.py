"""From inputs to a controller: opens the run, builds every part from the registry, and wires them together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import TypeVar

import orjson
from blake3 import blake3

from .alerts import Alerts
from .algorithms.flow import RolloutRoles, TrainRoles, flow_of
from .apart import Helper
from .checkpoint.age import SaveAge
from .checkpoint.keeper import Keeper
from .config.options import options_of
from .config.schema import Config, FaultToleranceConfig
from .errors import ConfigError, RunMismatch
from .fleet import Fleet
from .inputs import CONFIG, Inputs, changes_of, log_place, record_inputs, storage_at, unwanted_data
from .loop import Controller
from .parts import Condemn, Found, Parts
from .places import Places, checkpointer_at, copies_at, places_of, writer_at
from .protocols import Checkpointer, Cluster, FileStorage, RecoveryPolicy, Reward, RolloutWriter, Worker
from .recovery.supervisor import decide
from .registry import (
    ALERT_SINK,
    ALGORITHM,
    CLUSTER,
    METRIC_SINK,
    RECOVERY,
    ROLLOUT_ENGINE,
    TRAIN_ENGINE,
    Kind,
    Registry,
)
from .rewards.models import snapshot_of
from .rewards.swap import build_after, tell
from .rollout.handover import HandOver
from .state import events as ev
from .state.folder import OpenRun, open_run
from .state.forced import note_forced
from .state.history import History, Swap
from .state.journal import Journal
from .state.machine import evaluation_key
from .state.modes import check_modes
from .state.plan import plan_of
from .state.restored import restored
from .state.runtime import FILE, RuntimeFile, runtime_state
from .state.schedule import Schedule
from .state.spill import SpillPlace
from .types import BatchKey, BatchRef, BatchSpec, BuildContext, Decision, Fault, RewardSource, Sampling, WorkerId
from .workers import RolloutWorker, TrainWorker
from .writes import WriteQueue

T = TypeVar("T")


def assemble(inputs: Inputs) -> Controller:
    """Open the run and build its controller. Raises before anything is written when an input is bad."""
    config, plugins = inputs.config, inputs.plugins
    schedule, _ = inputs.schedule, inputs.val  # read now: bad data must leave nothing behind
    unwanted_data(inputs)
    storage = storage_at(plugins, config, inputs.start.run_dir)
    log_storage, log_path = log_place(plugins, config, storage)
    places = places_of(inputs, storage)
    answering = {"--run-dir": storage, **places.answering()}
    check_modes(answering, log_storage, single_committer=config.storage.single_committer)
    version, start = metadata.version("verl-core"), inputs.start
    run = open_run(storage, log_storage, log_path, resume=start.resume, code_version=version, take_over=start.take_over)
    try:
        return _controller(inputs, run, places, schedule, version)
    except BaseException:
        run.release()
        raise


def _controller(inputs: Inputs, run: OpenRun, places: Places, schedule: Schedule, version: str) -> Controller:
    config, observers = inputs.config, inputs.plugins.observers
    tolerance = config.training.fault_tolerance
    reward = inputs.reward_source(run.history)
    run, changes = _recorded(inputs, run, reward, schedule)
    text = inputs.loaded.config_text()
    context = inputs.context(run.run_id, run.history.branch, run.attempt)
    places.claim(run)
    writer = writer_at(inputs, places.rollouts, context)
    checkpointer = checkpointer_at(inputs, places.checkpoints, context)
    alerts = Alerts(_sinks(inputs, ALERT_SINK, context), observers)
    observers.on_wait = alerts.waiting
    writes = WriteQueue(patience_s=tolerance.severity_thresholds.rollout_storage_down_sec, on_wait=alerts.storage)
    cluster = _built(inputs, CLUSTER, config.distributed.cluster, config.distributed.options, context)
    helper = Helper([writer, checkpointer] if tolerance.enabled else [])
    store = HandOver(writer, writes, durable=tolerance.enabled, apart=helper)
    copies = copies_at(inputs, places, checkpointer, run.history, context, alerts)
    keeper = Keeper(checkpointer, writes, config.storage.keep_checkpoints, copies, helper)
    workers = partial(_factory, inputs, context, store, tuple(run.history.swaps))
    committed = committed_batches(writer, run.history, schedule)
    snapshot = snapshot_of(reward, *run.history.scale)

    def runtime(step: int) -> bytes:
        return runtime_state(run.history, schedule, step, snapshot).encode()

    place = run.storage.uri if config.storage.checkpoint_uri is None else config.storage.checkpoint_uri
    return Controller(
        Parts(
            run_uri=run.storage.uri,
            plan=plan_of(config, schedule, run.history, inputs.start.until_step),
            opened=_opened(inputs, version, text, reward),
            branch=run.history.branch,
            attempt=run.attempt,
            exact=config.training.deterministic,
            durable=tolerance.enabled,
            cluster=cluster,
            fleet=Fleet(cluster, workers, config.distributed.rollout_workers, config.distributed.train_ranks),
            store=store,
            keeper=keeper,
            journal=_journal(run, writes, cluster, tolerance, alerts),
            runtime=RuntimeFile(run.storage, writes, config.training.runtime_interval_steps, runtime),
            writes=writes,
            history=run.history,
            committed=committed,
            sweep=partial(_sweep, writer, None if places.missing else checkpointer, run.history, schedule, committed),
            start=partial(start_from, inputs.start.resume, keeper, run.history, place),
            save_files=partial(_save_files, text, runtime),
            decide=_decider(inputs, context, cluster),
            eval_spec=lambda step: BatchSpec(evaluation_key(step), step, _val_rows(inputs)),
            observers=observers,
            alerts=alerts,
            metrics=_sinks(inputs, METRIC_SINK, context),
            release=partial(_release, helper, run),
            restored=partial(restored, run.history, schedule, changes),
            save_age=_save_age(config),
        )
    )


def _recorded(inputs: Inputs, run: OpenRun, reward: RewardSource, schedule: Schedule) -> tuple[OpenRun, list[str]]:
    """Hold the inputs against what the run began with, and write them down; the changes that were forced."""
    if run.history.step > schedule.total_steps:
        what = f"total_steps is {schedule.total_steps}, but the run is at step {run.history.step}"
        raise ConfigError(what, where=run.storage.uri, remedy="give at least as many, or use another --run-dir")
    changes = changes_of(inputs, run, reward)
    if changes:
        run = note_forced(run, changes)
    tell(run.history.swaps)
    record_inputs(inputs, run)
    return run, changes


def _release(helper: Helper, run: OpenRun) -> None:
    helper.close()
    run.release()


def _opened(inputs: Inputs, version: str, text: str, reward: RewardSource) -> ev.Opened:
    config_hash, data = blake3(text.encode()).hexdigest(16), inputs.train.fingerprint
    return ev.Opened(os.getpid(), socket.gethostname(), version, config_hash, data, inputs.schedule.total_steps, reward)


def _journal(
    run: OpenRun, writes: WriteQueue, cluster: Cluster, tolerance: FaultToleranceConfig, alerts: Alerts
) -> Journal:
    spill = None
    if isinstance(run.storage, FileStorage) and run.log.segments is not None:
        spill = SpillPlace(run.storage, tolerance.severity_thresholds.state_log_down_sec, alerts.storage)
    identity = (run.run_id, run.history.branch, run.attempt, run.nonce)
    return Journal(
        run.log_storage, run.log_path, run.log, writes,
        identity=identity, wall=cluster.wall, sync=tolerance.enabled, spill=spill,
    )  # fmt: skip


def _decider(inputs: Inputs, context: BuildContext, cluster: Cluster) -> Callable[[Fault, History], Decision]:
    registry, tolerance = inputs.plugins.registry, inputs.config.training.fault_tolerance
    names = tolerance.recovery or registry.names(RECOVERY)
    policies = [_policy(registry, name, tolerance.options.get(name, {}), context) for name in names]
    return lambda fault, history: decide(fault, history, tolerance, policies, cluster.wall())


def _policy(registry: Registry, name: str, options: Mapping[str, object], context: BuildContext) -> RecoveryPolicy:
    return registry.build(RECOVERY, name, options_of(registry, RECOVERY, name, options), context)


def _sinks(inputs: Inputs, kind: Kind[[], T], context: BuildContext) -> list[T]:
    """The sinks that the config names, or all loaded ones."""
    monitoring, registry = inputs.config.monitoring, inputs.plugins.registry
    offered = registry.names(kind)
    names = [name for name in monitoring.sinks or offered if name in offered]
    return [
        registry.build(kind, n, options_of(registry, kind, n, monitoring.options.get(n, {})), context) for n in names
    ]


def _built(
    inputs: Inputs, kind: Kind[[], T], wanted: str | None, options: Mapping[str, object], context: BuildContext
) -> T:
    """A provider with those of the block's options that are its own."""
    registry, name = inputs.plugins.registry, inputs.name(kind, wanted)
    return registry.build(kind, name, options_of(registry, kind, name, options), context)


def _save_age(config: Config) -> SaveAge:
    tolerance = config.training.fault_tolerance
    watched = tolerance.enabled and config.training.device != "cpu"
    return SaveAge(tolerance.max_checkpoint_age_sec if watched else 0, tolerance.high_gpu_memory_fraction)


def _factory(
    inputs: Inputs, context: BuildContext, store: HandOver, swaps: Sequence[Swap], worker: WorkerId
) -> Callable[[], Worker]:
    """Builds the worker where the cluster wants it: engines are loaded there, not here."""
    config, registry = inputs.config, inputs.plugins.registry
    device = inputs.placement.device(worker.role, worker.index)
    if device and config.training.device != "cpu":
        context = replace(context, device=device)
    algorithm = registry.build(ALGORITHM, config.algorithm.name, config.algorithm.options, context)

    def scored_by(swaps_ago: int) -> Reward:
        return build_after(registry, config.model.reward, swaps[: len(swaps) - swaps_ago], context)

    def rollout() -> Worker:
        engine = _built(inputs, ROLLOUT_ENGINE, config.rollout.name, config.rollout.options, context)
        r = config.rollout
        sampling = Sampling(r.n, r.temperature, r.top_p, r.top_k, config.data.max_response_length, r.max_num_seqs)
        roles = RolloutRoles(engine, inputs.tokenizer, scored_by(0), sampling, config.seed)
        train = {p.row: p for p in inputs.train.prompts}
        val = {p.row: p for p in inputs.val.prompts} if inputs.val else {}
        return RolloutWorker(str(worker), flow_of(algorithm), roles, store, train, val, config.seed, scored_by)

    def train() -> Worker:
        engine = _built(inputs, TRAIN_ENGINE, config.training.name, config.training.options, context)
        return TrainWorker(
            str(worker), flow_of(algorithm), TrainRoles(engine, algorithm), store, inputs.tokenizer.files()
        )

    return rollout if worker.role == "rollout" else train


def committed_batches(writer: RolloutWriter, history: History, schedule: Schedule) -> dict[BatchKey, BatchRef]:
    """All committed batches: what the state log knows stands for itself, the rest must be what the schedule wants."""
    found = history.committed
    for ref in writer.scan(known=found.keys()):
        spec = schedule.spec(ref.key)
        if (ref.policy_version, ref.prompt_rows) != (spec.policy_version, spec.rows):
            raise RunMismatch(
                f"a committed batch of policy {ref.policy_version} is not the one of the schedule", where=str(ref.key)
            )
        found[ref.key] = ref
    return found


def _sweep(
    writer: RolloutWriter,
    checkpointer: Checkpointer | None,
    history: History,
    schedule: Schedule,
    committed: dict[BatchKey, BatchRef],
) -> list[str]:
    """Remove what dead attempts left half-made, where storage answers. What could be finished is known from then on."""
    swept = list(writer.sweep())
    if any(name.startswith("epoch_") for name in swept):
        committed.update(committed_batches(writer, history, schedule))
    return swept if checkpointer is None else [*swept, *checkpointer.sweep()]


def start_from(
    resume: str, keeper: Keeper, history: History, run_uri: str, condemn: Condemn, again: bool
) -> Found | None:
    """The checkpoint that the user named, or the newest good one; damaged ones are condemned, and named.

    ``again``: within an attempt, where the newest good one is always right.
    """
    if not again:
        keeper.carry_over()
    if resume not in ("auto", "never") and not again:
        return keeper.named(resume, run_uri)
    return keeper.newest_good(history.checkpoints, condemn)


def _save_files(text: str, runtime: Callable[[int], bytes], step: int) -> dict[str, bytes]:
    return {FILE: runtime(step), CONFIG: text.encode(), "scheduler.json": orjson.dumps({"step": step})}


def _val_rows(inputs: Inputs) -> tuple[int, ...]:
    return tuple(p.row for p in inputs.val.prompts) if inputs.val else ()
