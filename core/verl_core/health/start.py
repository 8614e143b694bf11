"""The preflight: config, paths, model folder, plugins, devices, NCCL, pins and stores, all findings together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from ..config.checks import Report, inspect_config
from ..config.devices import Placement, bound, place
from ..config.findings import Finding
from ..config.load import LoadedConfig
from ..config.nvml import Gpus, read_gpus
from ..config.options import check_options
from ..config.schema import Config
from ..errors import ConfigError, VerlError, WorkerError
from ..plugins import Loaded
from ..registry import HEALTH_CHECK
from ..rewards.models import reward_errors
from ..types import BuildContext
from . import process
from .all_reduce import measure
from .stores import Open, check_stores

RUN_DIR, ORCHESTRATION = "--run-dir", "orchestration.json"


@dataclass(frozen=True, slots=True)
class Preflight:
    report: Report
    placement: Placement


def preflight(
    loaded: LoadedConfig, plugins: Loaded, run_dir: str | None, open_at: Open, when: Literal["check", "start"]
) -> Preflight:
    """Ask everything. Sets GPUs and NCCL's variables for this process; what it writes, to try the stores, is gone."""
    config, places = loaded.config, loaded.places
    report = inspect_config(config, run_dir=run_dir, places=places)
    wrong = tuple(check_options(config, plugins.registry, places))
    report += Report(wrong)
    gpus = read_gpus() if bound(config.distributed) or config.training.device != "cpu" else Gpus(())
    before = _before(run_dir, open_at) if run_dir is not None and RUN_DIR not in report.wrong else None
    if before is None and not wrong:  # later the run says which reward is in force, and it is checked as the data are
        model = config.model
        report += Report(tuple(reward_errors(plugins.registry, model.reward, model.tokenizer_classes)))
    placement, findings = place(config.distributed, gpus, before, os.environ)
    report += Report.of(findings, places, _gpus(placement, gpus))
    process.apply(config.distributed, placement, gpus.found)
    report += Report(tuple(_plugin_errors(config, plugins, placement)))
    for found in check_stores(config, run_dir, open_at, places, skip=report.wrong, begun=before is not None):
        if isinstance(found, Finding):
            report += Report.of([found], places)
        else:
            report += Report(facts=(("store", found),)) if isinstance(found, str) else Report((found,))
    wanted = config.distributed.nccl.measure
    if not report.errors and (wanted == "start" or wanted == when) and len(placement.train) > 1:
        report += _measured(config, placement, places)
    return Preflight(report, placement)


def _before(run_dir: str, open_at: Open) -> Placement | None:
    """Which GPUs an earlier start of the run had. Whatever keeps it from being read is reported by others."""
    try:
        fields = orjson.loads(open_at(run_dir).get(ORCHESTRATION))["devices"]
        return Placement(tuple(fields["train"]), tuple(fields["rollout"]))
    except (VerlError, ValueError, KeyError, TypeError):
        return None


def _gpus(placement: Placement, gpus: Gpus) -> list[tuple[str, str]]:
    """Each GPU of the pools with its place in the mesh; without pools, those that are here."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus.found}
    pools = (("train", placement.train), ("rollout", placement.rollout if placement.rollout != placement.train else ()))
    named = [(f"{role}, {n}", by_uuid[uuid]) for role, pool in pools for n, uuid in enumerate(pool)]
    facts = []
    for role, gpu in named or [("not bound", gpu) for gpu in gpus.found]:
        node = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
        text = f"{role}: {gpu.uuid} ({gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB, now number {gpu.index}{node})"
        facts.append(("gpu", text))
    return facts


def _plugin_errors(config: Config, plugins: Loaded, placement: Placement) -> Iterator[VerlError]:
    """What the health checks of the loaded plugins find wrong."""
    device = config.training.device
    if device == "auto" and placement.uuids:
        device = "cuda"  # GPUs that are bound are meant
    context = BuildContext(model_path=config.model.actor.path, device=device)
    for name in plugins.registry.names(HEALTH_CHECK):
        for found in plugins.registry.build(HEALTH_CHECK, name, {}, context).check():
            if not found.ok:
                yield ConfigError(found.text, where=found.check, remedy=found.remedy)


def _measured(config: Config, placement: Placement, places: Mapping[str, str]) -> Report:
    nccl = config.distributed.nccl
    environ = process.environment(config.distributed, placement)
    try:
        result = measure(placement.train, environ, timeout_s=nccl.measure_timeout_sec)
    except WorkerError as error:
        return Report((error,))
    facts = [("nccl", str(result))]
    if result.bus_gb_per_s >= nccl.min_bus_gb_per_s:
        return Report.of([], places, facts)
    key, what = "distributed.nccl.min_bus_gb_per_s", f"{result.bus_gb_per_s:.1f} GB/s is less than wanted"
    slow = Finding(
        key, what, "NCCL_DEBUG=INFO shows which transport it took (NVLink, InfiniBand, sockets)", warning=True
    )
    return Report.of([slow], places, facts)
