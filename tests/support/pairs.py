"""Two workers on one batch, held or killed against each other at pairs of operations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from verl_core.testing.faulty import killed_at, paused_at
from verl_core.types import BatchRef

from tests.support.made import samples, spec, writer

OF = spec(1, version=1)
# The same draws, but not the same bytes: the seeds are those of the schedule, the rewards tell whose batch it is.
SAMPLES = {worker: [replace(s, reward=s.reward + more) for s in samples(OF)] for worker, more in (("a", 0), ("b", 9))}


def commit(root: Path, worker: str) -> BatchRef:
    """What the worker is told is left beside the root."""
    at = writer(root)
    ref = at.commit(at.stage(OF, SAMPLES[worker], worker=worker, seed=7))
    root.with_name(f"{root.name}.{worker}").write_text(repr(ref))
    return ref


def winner(root: Path, *told: str) -> str:
    """Whose batch it is. All who came to their end were told of this one, and it is whole."""
    at = writer(root)
    (ref,) = at.scan()
    found = at.load(ref)
    (owner,) = [worker for worker, made in SAMPLES.items() if [s.reward for s in made] == [s.reward for s in found]]
    for worker in told:
        assert root.with_name(f"{root.name}.{worker}").read_text() == repr(ref), worker
    folder = root / str(OF.key)
    assert sorted(os.listdir(folder)) == ["SUCCESS", "meta.json", "samples.jsonl"]
    assert f'"worker_id":"{owner}"' in (folder / "meta.json").read_text(), "data of one, record of the other"
    return owner


def rounds(folder: Path, first: int = 1, every: int = 1) -> Iterator[tuple[int, Path]]:
    return ((n, folder / f"held at {n}") for n in count(first, every))


def held_at_pairs(folder: Path, every: int) -> tuple[int, set[str]]:
    """Worker a waits at an operation while b runs up to another, then b goes on before a. How many pairs there were,
    and who won. ``every``: of b's operations, shifted with a's, so that each of either is met."""
    pairs, winners = 0, set[str]()
    for n, at in rounds(folder):
        for m, root in rounds(at, 1 + n % every, every):
            with ExitStack() as both:
                a_held = both.enter_context(paused_at(n, partial(commit, root, "a")))
                b_held = both.enter_context(paused_at(m, partial(commit, root, "b")))
                # leaving, b runs to its end before a goes on
            winners.add(winner(root, "a", "b"))
            pairs += 1
            if not b_held:
                break
        if not a_held:
            break
    return pairs, winners


def killed_beside(folder: Path, every: int) -> int:
    """Worker a waits at an operation while b is killed at another: a has the batch. How many pairs there were."""
    pairs = 0
    for n, at in rounds(folder):
        for m, root in rounds(at, 1 + n % every, every):
            with paused_at(n, partial(commit, root, "a")) as held:
                killed = killed_at(m, partial(commit, root, "b"))
            winner(root, "a")
            writer(root, attempt=1).sweep()
            assert winner(root, "a")
            assert not list(root.glob(".staging/*"))
            pairs += 1
            if not killed:
                break
        if not held:
            break
    return pairs
