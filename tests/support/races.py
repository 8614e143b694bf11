"""Workers in processes of their own that commit one batch at the same moment, each with samples of its own."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Sequence
from dataclasses import replace

from verl_core.errors import VerlError
from verl_core.protocols import Storage
from verl_core.rollout.objects import ObjectWriter
from verl_core.types import BatchRef, BatchSpec, RunIdentity, Sample

from tests.support.made import samples, spec

FILES = ["SUCCESS", "meta.json", "samples.jsonl"]
SPEC = spec(3, version=2)
_CONTEXT = mp.get_context("fork")  # what the tests imported is there
_TURN_S = 60.0


def drawn_by(worker: int, batch: BatchSpec = SPEC) -> list[Sample]:
    """The samples as ``worker`` drew them, as where bits do not reproduce: a mix of two would show."""
    return [replace(sample, reward=sample.reward + worker) for sample in samples(batch)]


def race(open_storage: Callable[[], Storage], *, workers: int, rounds: int) -> list[str]:
    """``workers`` processes commit the same batch, in each round a folder of the storage; returns what is broken.

    In each round all must be told of the same batch, which is whole, alone, and of one worker.
    """
    gate, told = _CONTEXT.Barrier(workers), _CONTEXT.Queue()
    children = [
        _CONTEXT.Process(target=_commits, args=(open_storage, worker, rounds, gate, told)) for worker in range(workers)
    ]
    for child in children:
        child.start()
    refs = [told.get(timeout=_TURN_S + rounds) for _ in children]
    for child in children:
        child.join(_TURN_S)
    failed = [answer for answer in refs if isinstance(answer, str)]
    storage = open_storage()
    return failed or [
        f"round {n}: {what}" for n in range(rounds) for what in _broken(storage.child(f"{n}"), [r[n] for r in refs])
    ]


def _commits(open_storage: Callable[[], Storage], worker: int, rounds: int, gate: object, told: object) -> None:
    """What a worker does: at the word, its commit; in the end it tells the refs that it got, or its error."""
    refs: list[BatchRef] = []
    try:
        storage = open_storage()
        for n in range(rounds):
            writer = ObjectWriter(storage.child(f"{n}"), RunIdentity("run", 0, worker), seed=7)
            staged = writer.stage(SPEC, drawn_by(worker), worker=f"rollout-{worker}", seed=7)
            gate.wait(_TURN_S)  # type: ignore[attr-defined]
            refs.append(writer.commit(staged))
    except (VerlError, OSError, RuntimeError) as error:  # RuntimeError: the gate is broken, another one failed
        gate.abort()  # type: ignore[attr-defined]
        told.put(f"worker {worker}, round {len(refs)}: {error!r}")  # type: ignore[attr-defined]
    else:
        told.put(refs)  # type: ignore[attr-defined]


def _broken(store: Storage, refs: Sequence[BatchRef]) -> list[str]:
    """What is wrong with the batch of a round, of which the workers were told ``refs``."""
    found, writer = [], ObjectWriter(store, RunIdentity("run", 0, 99))
    if {ref.samples_hash for ref in refs} != {refs[0].samples_hash}:
        found.append("the workers were told of different batches")
    if [stat.path for stat in store.list()] != [f"{SPEC.key}/{name}" for name in FILES]:
        found.append(f"left: {[stat.path for stat in store.list()]}")
    try:
        loaded = [sample.reward for sample in writer.load(refs[0])]
    except VerlError as error:
        return [*found, str(error)]
    if loaded not in [[sample.reward for sample in drawn_by(worker)] for worker in range(len(refs))]:
        found.append("the batch is nobody's")
    return found
