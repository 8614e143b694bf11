"""Whole runs on a storage that fails at its n-th operation: they go on, or end with that error, and lose nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from verl_core.errors import StorageDenied, StorageError, StorageFull, StorageReadOnly, StorageTimeout
from verl_core.protocols import FileStorage
from verl_core.testing.faulty import FailingStorage
from verl_core_storage.local import LocalStorage

from tests.support import light
from tests.support.promise import Reference, broken, broken_at_the_end, reference_of

pytestmark = pytest.mark.usefixtures("without_syncs")

STEPS = 3
PATIENCE = "training.fault_tolerance.severity_thresholds.rollout_storage_down_sec"
SMALL = ("training.prompts_per_step=2", "storage.keep_checkpoints=1")
run = partial(light.run, steps=STEPS, changes=(*SMALL, f"{PATIENCE}=20"))
run_impatiently = partial(light.run, steps=STEPS, changes=(*SMALL, f"{PATIENCE}=0.2"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root = tmp_path_factory.mktemp("light")
    run(root)
    return reference_of(root)


def failed_everywhere(
    folder: Path,
    undisturbed: Reference,
    *,
    every: int = 1,
    errors: Sequence[type[StorageError]] = (StorageFull, StorageReadOnly, StorageDenied, StorageTimeout),
    times: int = 1,
    lost: bool = False,
    reads: bool = False,
) -> Iterator[bool]:
    """A run on each storage that fails at operation 1, 1 + ``every`` …; yields whether it went on by itself.

    Whatever came of it, nothing is broken, and a start on a good storage ends like the undisturbed run.
    """
    for n in count(1, every):
        root, opened = folder / f"failed at {n}", list[FailingStorage]()

        def failing(inner: LocalStorage, n: int = n, opened: list[FailingStorage] = opened) -> FileStorage:
            opened.append(FailingStorage(inner, n, errors[n % len(errors)], times=times, lost=lost, reads=reads))
            return opened[-1]

        went_on = False
        with suppress(*errors):
            (run if times == 1 else run_impatiently)(root, storage=failing)
            went_on = True
        if not went_on:
            assert broken(root, undisturbed) == [], root
            run(root)
        assert broken_at_the_end(root, undisturbed) == [], root
        shutil.rmtree(root)
        if opened[0].changes < n:
            return
        yield went_on


@pytest.mark.slow
def test_c11_any_one_change_that_fails_only_delays_once_the_run_has_started(
    tmp_path: Path, undisturbed: Reference
) -> None:
    went_on = list(failed_everywhere(tmp_path, undisturbed))
    assert not any(went_on[:7]), "what names the run and claims its folders"
    assert all(went_on[10:-1]), "the last one: the name of the process is taken away"
    assert len(went_on) > 40


def test_a_change_whose_answer_is_lost_is_not_done_twice(tmp_path: Path, undisturbed: Reference) -> None:
    assert sum(failed_everywhere(tmp_path, undisturbed, errors=[StorageTimeout], lost=True, every=3)) > 10


def test_a_storage_that_fails_for_good_ends_the_run_which_goes_on_later(tmp_path: Path, undisturbed: Reference) -> None:
    ended = list(failed_everywhere(tmp_path, undisturbed, times=10**6, every=9))
    assert ended.count(False) >= len(ended) - 1 > 2


def test_a_read_that_is_not_answered_costs_nothing(tmp_path: Path, undisturbed: Reference) -> None:
    went_on = list(failed_everywhere(tmp_path, undisturbed, errors=[StorageTimeout], reads=True, every=8))
    assert len(went_on) > 10
