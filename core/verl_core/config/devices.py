"""Which GPU does what: a pool for training and one for rollouts, bound by UUID, so that the mesh outlives renumbering.

A process sees exactly the run's GPUs (``CUDA_VISIBLE_DEVICES``, by UUID and in the order of the mesh): ``cuda:0`` is
the GPU of training rank 0, wherever the scheduler counts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .findings import Finding
from .nvml import Gpu, Gpus, read_gpus
from .schema import Config, DistributedConfig
from .suggest import nearest

VISIBLE = "CUDA_VISIBLE_DEVICES"
UUIDS, TRAIN, ROLLOUT = "distributed.gpu_uuids", "distributed.train_gpus", "distributed.rollout_gpus"
_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


@dataclass(frozen=True, slots=True)
class Placement:
    """UUIDs in the order of the mesh. Where the roles share GPUs both have the same."""

    train: tuple[str, ...] = ()
    rollout: tuple[str, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.train, *self.rollout)))

    def device(self, role: str, index: int) -> str:
        """``cuda:N`` of a worker in a process that sees ``uuids``; "" where nothing is bound. Surplus workers share."""
        pool = self.rollout if role == "rollout" else self.train
        return f"cuda:{self.uuids.index(pool[index % len(pool)])}" if pool else ""

    def environment(self) -> dict[str, str]:
        return {VISIBLE: ",".join(self.uuids)} if self.uuids else {}


def bound(config: DistributedConfig) -> bool:
    """Whether the config binds GPUs at all."""
    return bool(config.train_gpus or config.rollout_gpus or config.gpu_uuids)


def place(
    config: DistributedConfig, gpus: Gpus, before: Placement | None, environ: Mapping[str, str]
) -> tuple[Placement, list[Finding]]:
    """Who gets which GPU, and what is wrong with it.

    ``before`` is the placement of an earlier start: without ``gpu_uuids`` it is kept, a GPU that is gone is replaced.
    """
    if not bound(config):
        return Placement(), []
    if gpus.trouble or not gpus.found:
        what = gpus.trouble or "no GPU is here, but the config binds some"
        return Placement(), [Finding(UUIDS if config.gpu_uuids else TRAIN, what, gpus.remedy or "bind none")]
    rollout = config.rollout_gpus
    train = config.train_gpus or max(0, len(config.gpu_uuids) - rollout)
    if train == 0:
        return Placement(), [Finding(TRAIN, "no GPU is left for training", f"give it some, beside {ROLLOUT}")]
    wrong: list[Finding] = []
    notes: list[Finding] = []
    if config.gpu_uuids:
        chosen = list(config.gpu_uuids)
        wrong = [*_named(chosen, gpus.found), *_count(chosen, train, rollout)]
    else:
        offered = _visible(gpus.found, environ)
        if len(offered) < train + rollout:
            what = f"{train} for training and {rollout} for rollouts, but {len(offered)} GPUs are visible here"
            return Placement(), [Finding(TRAIN, what, "ask for fewer, or for a node with more")]
        chosen, notes = _chosen([gpu.uuid for gpu in offered], train, rollout, before)
    if wrong:
        return Placement(), wrong
    pools = tuple(chosen[:train]), tuple(chosen[train : train + rollout])
    return Placement(pools[0], pools[1] or pools[0]), notes


def memory_in_use(environ: Mapping[str, str]) -> float:
    """Share of memory in use on the fullest GPU that a process with this environment sees; 0 where none answers."""
    seen = _visible(read_gpus().found, environ)
    return max((gpu.used_bytes / gpu.memory_bytes for gpu in seen), default=0.0)


def check_sizes(config: Config) -> Iterator[Finding]:
    """Whether ranks, workers and their parallel sizes fit the pools, and memory pools of shared GPUs each other."""
    d = config.distributed
    if bound(d) and config.training.device == "cpu":
        yield Finding("training.device", "cpu, although GPUs are bound", "auto, or bind none", warning=True)
    inner = _product(config.training.options)
    if d.train_ranks % inner:
        what = f"{d.train_ranks} ranks cannot be cut into groups of {inner} (tensor × pipeline × context parallel)"
        yield Finding("distributed.train_ranks", what, f"a multiple of {inner}")
    train = d.train_gpus or max(0, len(d.gpu_uuids) - d.rollout_gpus)
    rollout = d.rollout_gpus or train
    if train and d.train_ranks != train:
        idle = d.train_ranks < train
        what = f"{d.train_ranks} ranks on {train} GPUs: " + ("some stay idle" if idle else "each rank needs its own")
        yield Finding("distributed.train_ranks", what, f"{train}, or another {TRAIN}", warning=idle)
    wanted = d.rollout_workers * _product(config.rollout.options)
    if rollout and wanted > rollout:
        what = f"{wanted} GPUs for {d.rollout_workers} rollout workers, but their pool has {rollout}"
        yield Finding("distributed.rollout_workers", what, "fewer workers, a smaller parallel size, or a larger pool")
    yield from _memory(config, shared=bool(train) and not d.rollout_gpus)


def _memory(config: Config, *, shared: bool) -> Iterator[Finding]:
    """Rollout engines take their share of a GPU's memory at once and keep it: what training needs must be left."""
    key, training = "distributed.train_memory_fraction", config.distributed.train_memory_fraction
    taken = config.rollout.options.get("gpu_memory_utilization")
    if not isinstance(taken, int | float) or not shared:
        return
    if training == 0:
        what = f"no limit, while rollouts take {taken} of the same GPUs' memory (rollout.gpu_memory_utilization)"
        yield Finding(key, what, f"at most {1 - taken:.2f}, or separate pools ({ROLLOUT})", warning=True)
    elif training + taken > 1:
        what = f"{training} and rollout.gpu_memory_utilization {taken} of the same GPUs are more than their memory"
        yield Finding(key, what, f"at most {1 - taken:.2f}, or separate pools ({ROLLOUT})")


def _product(options: Mapping[str, object]) -> int:
    size = 1
    for name in _PARALLEL:
        value = options.get(name, 1)
        size *= value if isinstance(value, int) and value > 0 else 1
    return size


def _named(uuids: Sequence[str], gpus: Sequence[Gpu]) -> Iterator[Finding]:
    here = {gpu.uuid for gpu in gpus}
    for uuid in dict.fromkeys(uuids):
        if uuids.count(uuid) > 1:
            yield Finding(UUIDS, f"{uuid} is named twice", "name each GPU once")
        if uuid not in here:
            near = nearest(uuid, here, cutoff=0.8)
            remedy = f"did you mean {near!r}?" if near else "`nvidia-smi -L` lists those of this host"
            yield Finding(UUIDS, f"{uuid} is not here; here: {', '.join(sorted(here))}", remedy)


def _count(uuids: Sequence[str], train: int, rollout: int) -> Iterator[Finding]:
    if len(uuids) != train + rollout:
        what = f"{len(uuids)} UUIDs for {train} + {rollout} GPUs ({TRAIN} + {ROLLOUT})"
        yield Finding(UUIDS, what, f"name {train + rollout}, training's first")


def _chosen(
    offered: Sequence[str], train: int, rollout: int, before: Placement | None
) -> tuple[list[str], list[Finding]]:
    """The GPUs of the start before, in their places; free ones in the order of the bus for those that are gone."""
    kept = before.uuids if before is not None else ()
    if len(kept) != train + rollout:
        return list(offered[: train + rollout]), []
    free = iter([uuid for uuid in offered if uuid not in kept])
    gone = [uuid for uuid in kept if uuid not in offered]
    chosen = [uuid if uuid in offered else next(free) for uuid in kept]
    if not gone:
        return chosen, []
    what = f"{', '.join(gone)} of the last start {'is' if len(gone) == 1 else 'are'} gone and replaced"
    return chosen, [Finding(TRAIN, what, f"name the GPUs in {UUIDS} to be asked instead", warning=True)]


def _visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """What the scheduler gave to this process, in the order of the bus. Numbers count in that order, too."""
    given = environ.get(VISIBLE)
    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id)
    if given is None:
        return ordered
    names = [name.strip() for name in given.split(",") if name.strip()]
    return [g for g in ordered if str(g.index) in names or any(len(n) > 4 and g.uuid.startswith(n) for n in names)]
