"""The schedule: which batches at which policy version for which step. Pure, and the same for every worker count.

Steps are numbered from 1; the policy before step s has version s - 1. An epoch is cut into batches of
``prompts_per_batch`` prompts (the last may be ragged), and a step takes ``prompts_per_step / prompts_per_batch``
batches in a row, never across the end of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..data.order import epoch_batches, epoch_order
from ..types import BatchKey, BatchSpec


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that decides the order of data; ``rows`` are the data set's row numbers in source order."""

    seed: int
    rows: tuple[int, ...]
    prompts_per_batch: int
    prompts_per_step: int
    shuffle: bool
    total_steps: int
    _epochs: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def batches_per_epoch(self) -> int:
        return -(-len(self.rows) // self.prompts_per_batch)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self._batches_per_step)

    @property
    def _batches_per_step(self) -> int:
        return self.prompts_per_step // self.prompts_per_batch

    def keys(self, step: int) -> tuple[BatchKey, ...]:
        """The batches that step ``step`` consumes, in order."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        first = place * self._batches_per_step
        last = min(first + self._batches_per_step, self.batches_per_epoch)
        return tuple(BatchKey(epoch, batch) for batch in range(first, last))

    def spec(self, key: BatchKey) -> BatchSpec:
        """What a batch is made of: its rows in order, and the policy version that generates it."""
        return BatchSpec(key, self.step_of(key) - 1, self._epoch(key.epoch)[key.batch])

    def step_of(self, key: BatchKey) -> int:
        """The step that consumes a batch."""
        return key.epoch * self.steps_per_epoch + key.batch // self._batches_per_step + 1

    def prompts_through(self, step: int) -> int:
        """Prompts consumed by steps 1 … ``step``."""
        epochs, place = divmod(step, self.steps_per_epoch)
        return epochs * len(self.rows) + min(place * self.prompts_per_step, len(self.rows))

    def _epoch(self, epoch: int) -> tuple[tuple[int, ...], ...]:
        """Rows of each batch of an epoch; the few epochs asked for last are kept."""
        if epoch not in self._epochs:
            while len(self._epochs) >= 4:
                del self._epochs[next(iter(self._epochs))]
            order = epoch_order(self.seed, epoch, len(self.rows), self.shuffle)
            positions = epoch_batches(order, self.prompts_per_batch)
            self._epochs[epoch] = tuple(tuple(self.rows[i] for i in batch) for batch in positions)
        return self._epochs[epoch]
