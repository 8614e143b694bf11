"""A run opened and claimed, killed or failed at every operation: the next start finds one run, and it is free."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from verl_core.errors import RunBusy, RunMismatch, StorageFull, StorageTimeout
from verl_core.protocols import FileStorage
from verl_core.state.claim import claim_prefix, identify, read_controller
from verl_core.state.folder import LOG, OpenRun, open_run
from verl_core.state.journal import Journal, read_log
from verl_core.testing.faulty import FailingStorage, paused_at
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

from tests.support.points import killed_everywhere

pytestmark = pytest.mark.usefixtures("without_syncs")


def opened(storage: FileStorage) -> OpenRun:
    """The run, with both of its prefixes claimed and its first line written."""
    run = open_run(storage, storage, LOG, resume="auto", code_version="0")
    try:
        for prefix in ("rollouts", "checkpoints"):
            claim_prefix(storage.child(prefix), run.run_id)
        writes = WriteQueue(patience_s=0)
        identity = (run.run_id, 0, run.attempt, run.nonce)
        journal = Journal(storage, LOG, run.log, writes, identity=identity, wall=lambda: 1.5)
        journal.record("note", "INIT", {"attempt": run.attempt})
        writes.close()
    except BaseException:
        run.release()
        raise
    return run


def begin(root: Path) -> None:
    opened(LocalStorage(str(root))).release()


def nothing(root: Path) -> None:
    """No folder yet."""


def torn(root: Path) -> None:
    """A run of two attempts; the second one was killed within its second line."""
    begin(root)
    begin(root)
    with open(root / LOG, "ab") as file:
        file.write(TORN)


TORN = b'{"seq": 2, "half'
PREPARED: list[Callable[[Path], object]] = [nothing, begin, torn]


def check_and_go_on(root: Path, prepared: Callable[[Path], object]) -> None:
    """One run id everywhere, attempts in order, the torn line kept; and the run can be opened at once."""
    ids = {path.read_text() for path in root.glob("*/RUN")}
    if (root / "run.json").exists():
        ids.add(json.loads((root / "run.json").read_text())["run_id"])
    run = opened(LocalStorage(str(root)))
    assert ids <= {run.run_id}
    controller = read_controller(run.storage)
    assert controller is not None
    assert (controller.pid, controller.attempt) == (os.getpid(), run.attempt)
    entries = read_log(run.storage, LOG).entries
    attempts = [entry.attempt for entry in entries]
    assert attempts == sorted(set(attempts)) == [*range(1, len(attempts) + 1)]
    assert {entry.run_id for entry in entries} == {run.run_id}
    if prepared is torn:
        assert TORN in {path.read_bytes() for path in root.glob(f"{LOG}.torn.*")}
    run.release()
    assert read_controller(run.storage) is None


@pytest.mark.parametrize("prepared", PREPARED)
def test_a_start_killed_at_any_operation_is_followed_by_one_that_finds_the_same_run(
    tmp_path: Path, prepared: Callable[[Path], object]
) -> None:
    killed = 0
    for root in killed_everywhere(tmp_path, prepared, begin):
        check_and_go_on(root, prepared)
        killed += 1
    assert killed > (8 if prepared is begin else 15)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("prepared", PREPARED)
def test_a_start_that_fails_at_any_operation_gives_the_run_back(
    tmp_path: Path, prepared: Callable[[Path], object], lost: bool
) -> None:
    for n in count(1):
        root = tmp_path / str(n)
        prepared(root)
        error = (StorageFull, StorageTimeout)[n % 2]
        storage = FailingStorage(LocalStorage(str(root)), n, error, lost=lost, reads=True)
        with suppress(error):
            opened(storage).release()
        check_and_go_on(root, prepared)
        if storage.changes < n:
            break
    assert n > 8


def test_of_two_that_claim_one_prefix_at_once_exactly_one_gets_it(tmp_path: Path) -> None:
    owners: set[str] = set()
    for n in count(1):
        storage = LocalStorage(str(tmp_path / str(n)))
        told = tmp_path / f"{n}.told"

        def first(storage: LocalStorage = storage, told: Path = told) -> None:
            try:
                claim_prefix(storage, "one")
            except RunMismatch:
                told.touch()

        with paused_at(n, first) as held:
            try:
                claim_prefix(storage, "other")
                refused = False
            except RunMismatch:
                refused = True
        owner = storage.get("RUN").decode()
        assert (refused, told.exists()) == (owner == "one", owner == "other")
        owners.add(owner)
        if not held:
            break
    assert owners == {"one", "other"}


def test_of_two_that_begin_one_folder_at_once_both_find_the_same_run(tmp_path: Path) -> None:
    for n in count(1):
        storage, told = LocalStorage(str(tmp_path / str(n))), tmp_path / f"{n}.told"

        def first(storage: LocalStorage = storage, told: Path = told) -> None:
            told.write_text(identify(storage, code_version="0"))

        with paused_at(n, first) as held:
            found = identify(storage, code_version="0")
        assert told.read_text() == found == identify(storage, code_version="0")
        if not held:
            break
    assert n > 4


def test_a_second_start_is_refused_while_the_first_one_stands_anywhere(tmp_path: Path) -> None:
    for n in count(1):
        root = tmp_path / str(n)
        with paused_at(n, lambda root=root: begin(root)) as held:  # type: ignore[misc]
            if held:
                with pytest.raises(RunBusy):
                    opened(LocalStorage(str(root)))
        check_and_go_on(root, begin)
        if not held:
            break
    assert n > 15


def test_c13_a_folder_of_another_format_is_refused_with_the_reason(tmp_path: Path) -> None:
    begin(tmp_path)
    described = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**described, "format": 9}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunMismatch, match="format 9, this version reads format 1"):
        opened(LocalStorage(str(tmp_path)))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
