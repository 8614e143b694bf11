"""Batches in memory while their commit is under way: the first hand-in wins, and what is read is what was committed."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from verl_core.errors import DamagedBatch, VerlError
from verl_core.rollout.handover import HandOver
from verl_core.writes import WriteQueue

from tests.support.made import samples, spec, writer

SPEC = spec(version=3)
SAMPLES = samples(SPEC)
LATE = [replace(s, reward=s.reward + 1) for s in SAMPLES]


def test_samples_are_there_at_once_and_on_disk_after_the_queue(tmp_path: Path) -> None:
    writes, gate = WriteQueue(patience_s=1), threading.Event()
    writes.submit(gate.wait)
    store = HandOver(writer(tmp_path), writes)
    ref = store.commit(SPEC, SAMPLES, worker="rollout-0", seed=1)
    assert store.load(ref) == SAMPLES
    assert list(writer(tmp_path).scan()) == []
    gate.set()
    writes.close()
    assert list(writer(tmp_path).scan()) == [ref]
    store.drop([SPEC.key])
    assert [s.seed for s in store.load(ref)] == [s.seed for s in SAMPLES]


def test_a_late_worker_learns_that_another_won_and_nothing_is_mixed(tmp_path: Path) -> None:
    writes = WriteQueue(patience_s=1)
    store = HandOver(writer(tmp_path), writes)
    first = store.commit(SPEC, SAMPLES, worker="rollout-0", seed=1)
    assert store.commit(SPEC, LATE, worker="rollout-1", seed=1) == first
    writes.barrier()
    store.drop([SPEC.key])
    assert store.commit(SPEC, LATE, worker="rollout-1", seed=1) == first, "also long after"
    writes.close()
    assert [s.reward for s in store.load(first)] == [s.reward for s in SAMPLES]


def test_what_is_in_memory_is_not_passed_off_as_another_batch(tmp_path: Path) -> None:
    """A ref from the state log of another attempt, whose samples were not the same to the byte."""
    writes = WriteQueue(patience_s=1)
    store = HandOver(writer(tmp_path), writes)
    ref = store.commit(SPEC, SAMPLES, worker="rollout-0", seed=1)
    writes.close()
    with pytest.raises(DamagedBatch, match="journal"):
        store.load(replace(ref, samples_hash="blake3:other"))


def test_without_fault_tolerance_nothing_reaches_the_disk(tmp_path: Path) -> None:
    writes = WriteQueue(patience_s=1)
    store = HandOver(writer(tmp_path), writes, durable=False)
    ref = store.commit(SPEC, SAMPLES, worker="rollout-0", seed=1)
    writes.close()
    assert store.load(ref) == SAMPLES
    store.drop([SPEC.key])
    with pytest.raises(DamagedBatch):
        store.load(ref)


def test_other_samples_that_an_earlier_attempt_committed_break_the_queue_and_stay(tmp_path: Path) -> None:
    at = writer(tmp_path)
    committed = at.commit(at.stage(SPEC, LATE, worker="rollout-0", seed=1))
    writes = WriteQueue(patience_s=1)
    store = HandOver(writer(tmp_path, attempt=1), writes)
    store.commit(SPEC, SAMPLES, worker="rollout-0", seed=1)
    with pytest.raises(VerlError, match="attempt 0 committed other samples"):
        writes.barrier()
    assert list(at.scan()) == [committed]
    again = HandOver(writer(tmp_path, attempt=2), WriteQueue(patience_s=1))
    assert [s.reward for s in again.load(committed)] == [s.reward for s in LATE], "the next attempt goes on with them"
