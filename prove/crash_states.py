"""Power cuts: enumerates what they may leave of a run's files, and checks that the product goes on from each state.

``python -m prove.crash_states --seconds 600`` searches, ``--replay NAME`` shows one state that was found wrong. What a
power cut may leave is said in ``verl_core.testing.crash_states``, what is done and checked in ``crash_scenes``.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from verl_core.testing.disk import without_syncs

from .crash_search import Found, Search, replay, workloads

PARTS = (("run-keep1", "batches", "folder"), ("run-keep2-apart", "saves", "folder-apart"))  # a process each: two worlds


def prove(seed: int, budget_s: float) -> dict[str, int | float | list[str]]:
    """Search for ``budget_s`` seconds on two processes. A violation is a name for ``--replay``, and what is wrong."""
    begin = time.monotonic()
    with workplace() as folder, ProcessPoolExecutor(len(PARTS), multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_search, f"{folder}/{scenes[0]}", seed, scenes, budget_s) for scenes in PARTS]
        parts = [job.result() for job in jobs]
    seconds = time.monotonic() - begin
    states = len(set().union(*(part.digests for part in parts)))  # few are found by both
    figures: dict[str, int | float | list[str]] = {
        "crash_states": states,
        "violations": [violation for part in parts for violation in part.violations],
        "crash_states_per_s": round(states / seconds, 1),
        "crash_states_per_cpu_s": round(states / sum(part.cpu_s for part in parts), 1),
        "crash_states_in_recovery": sum(part.nested for part in parts),
        "crash_workloads": sum(part.workloads for part in parts),
    }
    for scene in sorted({scene for part in parts for scene in part.states}):
        figures[f"crash_states_{scene.replace('-', '_')}"] = sum(part.states[scene] for part in parts)
    return figures


def _search(folder: str, seed: int, scenes: Sequence[str], budget_s: float) -> Found:
    """One process's part. Nothing that it needs loads torch, and everything is one thread."""
    until = time.monotonic() + budget_s
    quiet()
    found = Search(folder, seed).run(workloads(seed, scenes), until)
    found.cpu_s = time.process_time()
    assert "torch" not in sys.modules, "the state of a disk needs no torch"
    return found


def quiet() -> None:
    """For a process that does nothing but search: no log of what is found half-made, no syncs, little collecting."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    os.fsync = os.fdatasync = lambda fd: None


@contextmanager
def workplace() -> Iterator[str]:
    """A folder in memory, where the machine has one."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="crash-states-", dir=memory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def show(name: str) -> int:
    """Bring a state back: what was done, what is left, what is wrong. 1 when something is."""
    with workplace() as folder, without_syncs():
        search = Search(folder, 0)
        recorded, state = replay(search, name)
        for number, operation in enumerate(recorded.operations[: state.cut]):
            print("-" if number < recorded.since else " ", number, operation)
        print("left:", *(f"  {path} {content!r}" for path, content in sorted(state.tree.items())), sep="\n")
        print("promised:", *(f"  {' '.join(key)}: {value}" for key, value in sorted(state.promises.items())), sep="\n")
        wrong = search.check(recorded, state, deep=True)
    print(wrong or "nothing is wrong")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m prove.crash_states", description=str(__doc__))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--replay", metavar="NAME", help="a state, as a search names it")
    options = parser.parse_args()
    if options.replay:
        try:
            return show(options.replay)
        except ValueError as error:
            parser.error(str(error))
    figures = prove(options.seed, options.seconds)
    for key, value in figures.items():
        print(f"{key}: {value}" if not isinstance(value, list) else "\n".join([f"{key}: {len(value)}", *value]))
    return int(bool(figures["violations"]))


if __name__ == "__main__":
    sys.exit(main())
