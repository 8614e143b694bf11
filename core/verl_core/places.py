"""Where the batches and checkpoints of a run lie, and who writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from .alerts import Alerts
from .checkpoint.copies import LocalCopies
from .config.options import options_of
from .errors import StorageError
from .inputs import Inputs, storage_at
from .protocols import Checkpointer, RolloutWriter, Storage
from .registry import CHECKPOINTER, WRITER
from .state.claim import CLAIM, claim_prefix
from .state.folder import CHECKPOINTS, ROLLOUTS, OpenRun
from .state.history import History
from .types import BuildContext
from .writes import DOWN

_ROLLOUT_URI, _CHECKPOINT_URI = "storage.rollout_storage_uri", "storage.checkpoint_uri"


@dataclass(frozen=True, slots=True)
class Places:
    """``missing``: why the storage of checkpoints does not answer, where copies on this host can stand in for it."""

    rollouts: Storage
    checkpoints: Storage
    missing: StorageError | None

    def answering(self) -> Mapping[str, Storage]:
        """By the keys that say where they are."""
        checkpoints = {} if self.missing else {_CHECKPOINT_URI: self.checkpoints}
        return {_ROLLOUT_URI: self.rollouts, **checkpoints}

    def claim(self, run: OpenRun) -> None:
        """Mark them as the run's; one that is missing later. Raises RunMismatch when another run has them."""
        if self.missing is not None and run.attempt == 1:
            raise self.missing  # a run begins where all that it writes to is there
        for place in self.answering().values():
            claim_prefix(place, run.run_id)


def places_of(inputs: Inputs, run: Storage) -> Places:
    """As the config says, or in the run folder."""
    storage = inputs.config.storage
    rollouts, checkpoints = (
        run.child(name) if uri is None else storage_at(inputs.plugins, inputs.config, uri)
        for uri, name in ((storage.rollout_storage_uri, ROLLOUTS), (storage.checkpoint_uri, CHECKPOINTS))
    )
    stood_in_for = inputs.config.backup.local_backup_dir is not None and storage.checkpoint_uri is not None
    return Places(rollouts, checkpoints, _down(checkpoints) if stood_in_for else None)


def _down(storage: Storage) -> StorageError | None:
    try:
        storage.stat(CLAIM)
    except DOWN as error:
        return error
    return None


def writer_at(inputs: Inputs, rollouts: Storage, context: BuildContext) -> RolloutWriter:
    rollout, registry = inputs.config.rollout, inputs.plugins.registry
    options = options_of(registry, WRITER, rollout.writer, rollout.options)
    return registry.build(WRITER, rollout.writer, options, context, rollouts)


def checkpointer_at(inputs: Inputs, checkpoints: Storage, context: BuildContext) -> Checkpointer:
    training, registry = inputs.config.training, inputs.plugins.registry
    options = options_of(registry, CHECKPOINTER, training.checkpointer, training.options)
    return registry.build(CHECKPOINTER, training.checkpointer, options, context, checkpoints)


def copies_at(
    inputs: Inputs, places: Places, main: Checkpointer, history: History, context: BuildContext, alerts: Alerts
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
        claim=partial(claim_prefix, places.checkpoints, context.run_id),
        on_wait=alerts.storage,
    )
