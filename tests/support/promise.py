"""The promise as two checks: what a run must hold at every moment, and what it must be in the end.

Both return what is broken, in words: nothing for a run that keeps the promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import VerlError
from verl_core.rollout.writer import AtomicWriter
from verl_core.state.audit import consumption_errors
from verl_core.state.folder import CHECKPOINTS, LOG, ROLLOUTS
from verl_core.state.history import History, batch_key, batch_ref, fold
from verl_core.state.journal import Entry, read_log
from verl_core.types import BatchKey, RunIdentity
from verl_core_storage.local import LocalStorage

from tests.support import runs


@dataclass(frozen=True)
class Reference:
    """The undisturbed run."""

    history: History
    batches: dict[str, bytes]


def history_of(run: Path) -> History:
    """What the state log tells. Raises JournalError."""
    return fold(read_log(LocalStorage(str(run)), LOG).entries)


def reference_of(run: Path) -> Reference:
    return Reference(history_of(run), runs.batches(run))


def broken(run: Path, reference: Reference) -> list[str]:
    """At any moment: consumption is an exact prefix, the state log is behind the data, what is committed is whole."""
    try:
        entries = read_log(LocalStorage(str(run)), LOG).entries
        history = fold(entries)
        return [
            *_steps(history, reference),
            *_batches(run, history, reference),
            *_checkpoints(run, history, any(entry.event == "checkpoint_committed" for entry in entries)),
            *_generated_again(entries),
        ]
    except VerlError as error:
        return [str(error)]


def broken_at_the_end(run: Path, reference: Reference) -> list[str]:
    """Of a finished run: it is the undisturbed one."""
    history, found = history_of(run), broken(run, reference)
    if (history.state, history.step) != (reference.history.state, reference.history.step):
        found.append(f"{history.state} at step {history.step}")
    if history.rewards != reference.history.rewards:
        found.append("other rewards")
    if runs.batches(run) != reference.batches:
        found.append("other batches")
    if history.step not in history.checkpoints:
        found.append("the last step is not saved")
    return [*found, *map(str, consumption_errors(history))]


def _steps(history: History, reference: Reference) -> Iterator[str]:
    if sorted(history.steps) != list(range(1, history.step + 1)):
        yield f"steps {sorted(history.steps)} are no prefix"
    for step, record in history.steps.items():
        want = reference.history.steps[step]
        if record.keys != want.keys:
            yield f"step {step} consumed {record.keys}"
        if record.policy_digest != want.policy_digest:
            yield f"step {step} led to another policy"


def _batches(run: Path, history: History, reference: Reference) -> Iterator[str]:
    at = AtomicWriter(LocalStorage(str(run / ROLLOUTS)), RunIdentity(history.run_id, 0, 0))
    for ref in history.committed.values():
        try:
            at.load(ref)
        except VerlError as error:
            yield f"the state log has a batch that the storage has not: {error}"
    for name, data in runs.batches(run).items():
        if data != reference.batches.get(name):
            yield f"{name} is another batch"


def _checkpoints(run: Path, history: History, saved: bool) -> Iterator[str]:
    at = ShardedCheckpointer(LocalStorage(str(run / CHECKPOINTS)), RunIdentity(history.run_id, 0, 0))
    there = at.list() if history.run_id else []
    for ref in [*history.checkpoints.values(), *there]:
        try:
            at.verify(ref)
        except VerlError as error:
            yield f"a checkpoint is not whole: {error}"
        if ref.step > history.step:
            yield f"step {ref.step} is saved, but the state log ends at {history.step}"
    if saved and not there:
        yield "no checkpoint is left"


def _generated_again(entries: Sequence[Entry]) -> Iterator[str]:
    """Batches that were sent to be generated though the state log knew them committed, and not condemned."""
    committed: set[BatchKey] = set()
    for entry in entries:
        if entry.event == "rollout_complete":
            committed.add(batch_ref(entry.payload["ref"]).key)  # type: ignore[arg-type]
        if entry.event == "condemned" and entry.payload["kind"] == "batch":
            committed.discard(batch_key(entry.payload["key"]))  # type: ignore[arg-type]
        if entry.event == "rollout_dispatched":
            for key in map(batch_key, entry.payload["generate"]):  # type: ignore[call-overload]
                if key in committed:
                    yield f"{key} was generated again"
