"""Whole light runs on any storage, and the promise as checks on what they leave there; see ``light``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from verl_core.algorithms.grpo import GrpoConfig, build_grpo
from verl_core.assemble import assemble
from verl_core.checkpoint.sharded import ShardedCheckpointer, ShardedConfig, build_sharded
from verl_core.config import read_config
from verl_core.inputs import Start
from verl_core.loop import Controller
from verl_core.observers import Observers
from verl_core.plugins import Loaded
from verl_core.protocols import Storage
from verl_core.registry import (
    ALGORITHM,
    CHECKPOINTER,
    CLUSTER,
    RECOVERY,
    REWARD,
    ROLLOUT_ENGINE,
    STORAGE,
    TRAIN_ENGINE,
    WRITER,
    Registry,
)
from verl_core.rollout.objects import ObjectWriter
from verl_core.rollout.writer import AtomicConfig, build_atomic
from verl_core.state.audit import consumption_errors
from verl_core.state.folder import CHECKPOINTS, LOG, ROLLOUTS
from verl_core.state.history import History, fold
from verl_core.state.journal import read_log
from verl_core.types import Bytes, Capabilities, ObjectStat, RunIdentity
from verl_core_engines.inline import InlineConfig, build_inline
from verl_core_recovery.retry import RetryConfig, build_retry
from verl_core_storage.local import LocalConfig, LocalStorage

from tests.support import light

RUN = "memory://bucket/run"
SMALL = ("training.prompts_per_step=2", "storage.keep_checkpoints=1")  # one batch a step, one checkpoint kept
LOG_AT = "training.fault_tolerance.state_log_path=memory://bucket/log/state_log.jsonl"
PATIENCE = "training.fault_tolerance.severity_thresholds.rollout_storage_down_sec"


def controller(
    open_at: Callable[[str], Storage],
    steps: int,
    *,
    changes: Sequence[str] = SMALL,
    take_over: bool = False,
    run: str = RUN,
) -> Controller:
    """The controller of a run; ``open_at`` opens each ``memory://`` URI."""
    registry = Registry()
    registry.register(STORAGE, "memory", LocalConfig, lambda _, context: open_at(context.uri))
    registry.register(STORAGE, "local", LocalConfig, lambda _, context: LocalStorage(context.uri))
    registry.register(CLUSTER, "inline", InlineConfig, build_inline)
    registry.register(RECOVERY, "retry", RetryConfig, build_retry)
    registry.register(WRITER, "atomic", AtomicConfig, build_atomic)
    registry.register(CHECKPOINTER, "sharded", ShardedConfig, build_sharded)
    registry.register(ALGORITHM, "grpo", GrpoConfig, build_grpo)
    registry.register(TRAIN_ENGINE, "light", light.LightConfig, light.LightTrainer)
    registry.register(ROLLOUT_ENGINE, "light", light.LightConfig, light.LightRollout)
    registry.register(REWARD, "light", light.LightReward, lambda reward, _: reward)
    loaded = read_config(None, [*changes, f"total_steps={steps}"], base=light.CONFIG)
    start = Start(run, take_over=take_over)
    return assemble(light.LightInputs(loaded, Loaded(registry, Observers(), ()), start))


class ObjectsOnDisk:
    """A store that several processes share, and that can only do what an object store can."""

    def __init__(self, inner: LocalStorage) -> None:
        self.uri, self._inner = inner.uri, inner

    def capabilities(self) -> Capabilities:
        return Capabilities(publish=False, append=False, conditional_put=True, lock=False)

    def put(self, path: str, data: Bytes | Iterable[Bytes], *, if_absent: bool = False) -> int:
        return self._inner.put(path, data, if_absent=if_absent)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.get(path, start, end)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        return self._inner.list(prefix)

    def stat(self, path: str) -> ObjectStat | None:
        return self._inner.stat(path)

    def delete(self, path: str) -> None:
        self._inner.delete(path)

    def child(self, prefix: str) -> ObjectsOnDisk:
        return ObjectsOnDisk(self._inner.child(prefix))


@dataclass(frozen=True)
class Left:
    """What lies on the storage of a run."""

    history: History
    batches: dict[str, bytes]  # committed ones, byte for byte


def left(root: Storage, log: Storage | None = None, saves: Storage | None = None) -> Left:
    """Read a run at ``root``, its state log at ``log`` and its checkpoints at ``saves`` or there, every hash checked.
    Raises VerlError for damage."""
    history = fold(read_log(log or root, LOG).entries)
    rollouts, identity = root.child(ROLLOUTS), RunIdentity(history.run_id, 0, 0)
    writer = ObjectWriter(rollouts, identity)
    refs = list(writer.scan())
    assert {ref.key for ref in refs} >= history.committed.keys(), "the state log has a batch that the storage has not"
    for ref in [*refs, *history.committed.values()]:
        writer.load(ref)
    checkpointer = ShardedCheckpointer(saves or root.child(CHECKPOINTS), identity)
    for saved in [*checkpointer.list(), *history.checkpoints.values()]:
        checkpointer.verify(saved)
    return Left(history, {str(ref.key): rollouts.get(f"{ref.key}/samples.jsonl") for ref in refs})


def assert_same(found: Left, reference: Left) -> None:
    """The finished run is the undisturbed one."""
    assert not list(map(str, consumption_errors(found.history)))
    for name in ("state", "step", "policy_digest", "rewards"):
        assert getattr(found.history, name) == getattr(reference.history, name), name
    assert found.batches == reference.batches
    assert found.history.step in found.history.checkpoints
