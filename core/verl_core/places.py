"""Where the batches and checkpoints of a run lie, and who writes them."""

from __future__ import annotations

from .alerts import Alerts
from .checkpoint.copies import LocalCopies
from .config.options import options_of
from .inputs import Inputs, storage_at
from .protocols import Checkpointer, RolloutWriter, Storage
from .registry import CHECKPOINTER, WRITER
from .state.folder import CHECKPOINTS, ROLLOUTS
from .state.history import History
from .types import BuildContext


def prefixes_of(inputs: Inputs, run: Storage) -> dict[str, Storage]:
    """Where batches and checkpoints lie, in this order, by the keys that say so."""
    config = inputs.config
    wanted = (
        ("storage.rollout_storage_uri", config.storage.rollout_storage_uri, ROLLOUTS),
        ("storage.checkpoint_uri", config.storage.checkpoint_uri, CHECKPOINTS),
    )
    return {
        key: run.child(name) if uri is None else storage_at(inputs.plugins, config, uri) for key, uri, name in wanted
    }


def writer_at(inputs: Inputs, rollouts: Storage, context: BuildContext) -> RolloutWriter:
    rollout, registry = inputs.config.rollout, inputs.plugins.registry
    options = options_of(registry, WRITER, rollout.writer, rollout.options)
    return registry.build(WRITER, rollout.writer, options, context, rollouts)


def checkpointer_at(inputs: Inputs, checkpoints: Storage, context: BuildContext) -> Checkpointer:
    training, registry = inputs.config.training, inputs.plugins.registry
    options = options_of(registry, CHECKPOINTER, training.checkpointer, training.options)
    return registry.build(CHECKPOINTER, training.checkpointer, options, context, checkpoints)


def copies_at(
    inputs: Inputs, main: Checkpointer, history: History, context: BuildContext, alerts: Alerts
) -> LocalCopies | None:
    """Copies of checkpoints below ``backup.local_backup_dir``, in a folder of the run's own."""
    backup, limits = inputs.config.backup, inputs.config.training.fault_tolerance.severity_thresholds
    if backup.local_backup_dir is None:
        return None
    local = storage_at(inputs.plugins, inputs.config, backup.local_backup_dir).child(context.run_id)
    return LocalCopies(
        checkpointer_at(inputs, local, context),
        main,
        keep=backup.keep_local,
        limit_s=limits.checkpoint_storage_down_sec,
        wanted=history.current,
        on_wait=alerts.storage,
    )
