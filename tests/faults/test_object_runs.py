"""Whole runs on an object store: killed, cut off from it, and begun twice, at every operation; the end is the same."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import TypeVar

import pytest
from verl_core.errors import ConfigError, RunBusy, StorageTimeout, VerlError
from verl_core.protocols import Storage
from verl_core.state.claim import CONTROLLER, read_controller
from verl_core.state.folder import LOG, OpenRun, open_run
from verl_core.state.history import fold
from verl_core.state.journal import Journal, read_log
from verl_core.state.lease import LEASE_S, Heartbeat
from verl_core.testing.faulty import killed_at
from verl_core.testing.faulty_objects import Around, Death, Killed, LostAnswer, Operation, Puppet, Watched
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.types import RunFinished
from verl_core.writes import WriteQueue
from verl_core_storage.local import LocalStorage

from tests.support.object_runs import PATIENCE, RUN, SMALL, Left, ObjectsOnDisk, assert_same, controller, left

T = TypeVar("T")
STEPS = 3
ALL_STEPS_ON_TWO_EPOCHS = 8


def opener(store: MemoryObjects, around: Around | None = None) -> Callable[[str], Storage]:
    """Opens ``memory://bucket/…`` on one store."""

    def open_at(uri: str) -> Storage:
        inner = store.child(uri.removeprefix("memory://bucket/"))
        return inner if around is None else Watched(inner, around)

    return open_at


def run(
    store: MemoryObjects,
    steps: int = STEPS,
    *,
    around: Around | None = None,
    take_over: bool = False,
    changes: tuple[str, ...] = (),
) -> RunFinished:
    return controller(opener(store, around), steps, changes=(*SMALL, *changes), take_over=take_over).run()


def bucket() -> MemoryObjects:
    return MemoryObjects("memory://bucket")


def run_folder(store: MemoryObjects) -> Storage:
    return opener(store)(RUN)


@pytest.fixture(scope="module")
def reference() -> Left:
    store = bucket()
    run(store)
    return left(run_folder(store))


def test_a_run_on_objects_ends_as_the_same_run_on_files() -> None:
    store, files = bucket(), MemoryFiles("memory://bucket")
    ends = [
        controller(open_at, ALL_STEPS_ON_TWO_EPOCHS, changes=()).run()
        for open_at in (opener(store), lambda uri: files.child(uri.removeprefix("memory://bucket/")))
    ]
    assert ends[0] == ends[1]
    one, other = left(run_folder(store)), left(files.child("run"))
    assert one.batches == other.batches
    assert one.history.steps.keys() == other.history.steps.keys()


def test_a_finished_run_can_be_gone_on_with(reference: Left) -> None:
    store = bucket()
    for steps in range(1, STEPS + 1):
        run(store, steps)
    found = left(run_folder(store))
    assert found.batches == reference.batches
    assert found.history.policy_digest == reference.history.policy_digest
    assert found.history.attempt == STEPS


def test_a_start_lists_the_batches_once_and_looks_at_none_that_the_state_log_knows() -> None:
    store, seen = bucket(), list[Operation]()
    controller(opener(store), ALL_STEPS_ON_TWO_EPOCHS, changes=()).run()

    class Note:
        def __call__(self, operation: Operation, call: Callable[[], T]) -> T:
            seen.append(operation)
            return call()

    controller(opener(store, Note()), ALL_STEPS_ON_TWO_EPOCHS, changes=()).run()
    batches = [op for op in seen if "/rollouts/" in op.where]
    assert [(op.name, op.where) for op in batches] == [
        ("put", f"{RUN}/rollouts/RUN"), ("get", f"{RUN}/rollouts/RUN"), ("list", f"{RUN}/rollouts/")
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_that_dies_at_any_operation_goes_on_to_the_same_end(reference: Left) -> None:
    for n in count(1):
        store, death = bucket(), Death(n)
        try:
            run(store, around=death)
        except Killed:
            assert_prefix(run_folder(store), reference)
            run(store, take_over=True)
        assert_same(left(run_folder(store)), reference)
        if not death.happened:
            break
    assert n > 100


def assert_prefix(root: Storage, reference: Left) -> None:
    """At any moment: what is there is whole, and of the undisturbed run."""
    if root.stat("run.json") is None:
        return
    found = left(root)
    assert found.batches.items() <= reference.batches.items()
    for step, record in found.history.steps.items():
        assert record.policy_digest == reference.history.steps[step].policy_digest
    assert sorted(found.history.steps) == list(range(1, found.history.step + 1))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [LostAnswer, partial(LostAnswer, landed=True), partial(LostAnswer, late=9)])
def test_an_answer_that_is_lost_at_any_change_ends_in_the_same_run(
    reference: Left, fault: Callable[[int], LostAnswer]
) -> None:
    for n in count(1, 2):
        store, lost = bucket(), fault(n)
        try:
            run(store, around=lost, changes=(f"{PATIENCE}=5",))
        except StorageTimeout:
            assert_prefix(run_folder(store), reference)  # before the writer thread was there, nothing is tried again
            run(store, take_over=True)
        assert_same(left(run_folder(store)), reference)
        if lost.changes < n:
            break
    assert n > 60


@pytest.mark.slow
def test_two_controllers_one_frozen_at_any_operation_and_woken_later_end_as_one(reference: Left) -> None:
    woken = []
    for frozen in count(0, 2):
        store = bucket()
        one = Puppet(run_folder(store), partial(as_controller, store))
        done = one.go(frozen)
        run(store, take_over=True)
        assert_same(left(run_folder(store)), reference)
        woken.append(ended(one))
        found = left(run_folder(store))
        assert found.batches == reference.batches
        assert found.history.policy_digest == reference.history.policy_digest
        assert_one_piece_each(run_folder(store))
        if done:
            break
    assert frozen > 80
    assert set(woken) == {"DONE", "RunBusy"}
    assert woken.count("RunBusy") > 0.8 * len(woken), "frozen after its claim, it is fenced"


def as_controller(store: MemoryObjects, gate: Storage) -> RunFinished:
    """The run by a frozen controller: each of its storages stops at the gate."""
    assert isinstance(gate, Watched)
    return run(store, around=gate.around, take_over=True)


def ended(puppet: Puppet[RunFinished]) -> str:
    try:
        return puppet.end().state
    except VerlError as error:
        return type(error).__name__


def assert_one_piece_each(root: Storage) -> None:
    nonces = [entry.nonce for entry in read_log(root, LOG).entries]
    changes = sum(1 for before, after in pairwise(nonces) if before != after)
    assert changes + 1 == len(set(nonces)), "no controller writes again after another one did"


@pytest.mark.parametrize("spoil", ["samples.jsonl", "meta.json"])
def test_a_damaged_batch_is_made_again_beside_it_and_the_run_ends_the_same(reference: Left, spoil: str) -> None:
    store = bucket()
    run(store)
    for folder in ("step_000002", "step_000003"):
        store.delete(f"run/checkpoints/{folder}")
    store.put(f"run/rollouts/epoch_0/batch_1/{spoil}", b"damage")
    result = run(store)
    assert result.policy_digest == reference.history.policy_digest
    made = store.get("run/rollouts/epoch_0/batch_1/again_1/samples.jsonl")
    assert made == reference.batches["epoch_0/batch_1"]
    history = fold(read_log(run_folder(store), LOG).entries)
    assert history.condemned == ["epoch_0/batch_1"]
    store.delete("run/checkpoints/step_000003")
    assert run(store).policy_digest == reference.history.policy_digest, "and read from there from now on"


def test_a_batch_that_lost_its_mark_is_finished_again_from_its_samples(reference: Left) -> None:
    store = bucket()
    run(store)
    store.delete("run/checkpoints/step_000003")
    store.delete("run/rollouts/epoch_0/batch_1/SUCCESS")
    run(store)
    assert_same(left(run_folder(store)), reference)


# --- who holds the run ---------------------------------------------------------------------------


def opened(storage: Storage, *, take_over: bool = False, now: float | None = None) -> OpenRun:
    wall = time.time if now is None else lambda: now
    return open_run(storage, storage, LOG, resume="auto", code_version="0", take_over=take_over, wall=wall)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows happens on another host."""
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")


def test_a_live_run_is_refused_on_the_same_host_and_freed_by_its_release() -> None:
    store = bucket()
    first = opened(store)
    with pytest.raises(RunBusy, match=f"held by process {os.getpid()} on {socket.gethostname()}"):
        opened(store)
    first.release()
    assert read_controller(store) is None
    second = opened(store)
    assert (first.attempt, second.attempt) == (1, 2)
    second.release()


def test_on_another_host_the_lease_counts_and_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    store = MemoryObjects("memory://bucket", clock=lambda: now[0])
    first = opened(store, now=now[0])
    elsewhere(monkeypatch)
    with pytest.raises(RunBusy, match=r"wait 50 s, or --take-over"):
        opened(store, now=now[0] + LEASE_S - 50)
    with pytest.raises(RunBusy):
        opened(store, now=now[0] - 1e6)  # a clock that is behind: rather refuse
    second = opened(store, now=now[0] + LEASE_S)
    third = opened(store, take_over=True, now=now[0])
    assert [run.attempt for run in (first, second, third)] == [1, 2, 3]
    for stale in (first, second):
        stale.release()
        holder = read_controller(store)
        assert holder is not None
        assert holder.nonce == third.nonce, "what another one holds is left to it"
        with pytest.raises(RunBusy, match="attempt"):
            note(stale)
    note(third)
    third.release()


def scribe(run: OpenRun) -> Callable[[], None]:
    """Writes one line into the state log at each call, durable on return."""
    writes = WriteQueue(patience_s=0)
    identity = (run.run_id, 0, run.attempt, run.nonce)
    journal = Journal(run.log_storage, run.log_path, run.log, writes, identity=identity, wall=lambda: 1.5)

    def write() -> None:
        journal.record("note", "INIT", {})
        writes.barrier()

    return write


def note(run: OpenRun) -> None:
    scribe(run)()


def test_the_heartbeat_renews_the_lease_until_another_one_holds_the_run() -> None:
    now = [1000.0]
    store = MemoryObjects("memory://bucket", clock=lambda: now[0])
    run = opened(store)
    facts = store.get(CONTROLLER)
    beat = Heartbeat(store, facts, every_s=0.01)
    try:
        now[0] = 2000.0
        until(lambda: mtime(store) == 2000.0)
        store.put(CONTROLLER, b"{}")
        now[0] = 3000.0
        beat._stopped.wait(0.1)
        assert mtime(store) == 2000.0
    finally:
        beat.stop()
        run.release()


def mtime(store: Storage) -> float:
    stat = store.stat(CONTROLLER)
    assert stat is not None
    return stat.mtime


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about within 5 s")


def test_of_two_that_start_at_the_same_moment_one_is_refused() -> None:
    outcomes = set()
    for first in count():
        store = bucket()
        one = Puppet(store, opened)
        done = one.go(first)
        try:
            other = opened(store)
        except RunBusy:
            outcomes.add("the second is refused")
            one.end().release()
            assert done or first > 5
        else:
            try:
                run = one.end()
            except RunBusy:
                outcomes.add("the first is refused")
            else:  # both opened it; the state log says who holds it
                outcomes.add("the first is fenced" if run.attempt < other.attempt else "the second is fenced")
                last, fenced = (other, run) if run.attempt < other.attempt else (run, other)
                note(last)
                with pytest.raises(RunBusy):
                    note(fenced)
        assert read_log(store, LOG).entries[0].seq == 0
        if done:
            break
    assert {"the first is refused", "the second is refused"} <= outcomes


def test_a_late_line_of_the_one_before_is_kept_and_the_claim_takes_the_next_number() -> None:
    store = bucket()
    first = opened(store)
    second = Puppet(store, partial(opened, take_over=True))
    while second.at is None or not second.at.where.endswith("/000000000001.jsonl"):  # its claim
        assert not second.go(1)
    write = scribe(first)
    write()
    run = second.end()
    events = [(entry.attempt, entry.event) for entry in read_log(store, LOG).entries]
    assert events == [(1, "claimed"), (1, "note"), (2, "claimed")]
    assert run.attempt == 2
    with pytest.raises(RunBusy, match="attempt 2"):
        write()


# --- killed for real -----------------------------------------------------------------------------


def test_after_a_kill_on_the_same_host_a_start_does_not_wait(tmp_path: Path) -> None:
    for n in count(1):
        store = ObjectsOnDisk(LocalStorage(str(tmp_path / str(n))))
        killed = killed_at(n, lambda store=store: note(opened(store)))  # type: ignore[misc]
        run = opened(store)
        note(run)
        entries = read_log(store, LOG).entries
        assert [entry.attempt for entry in entries] == sorted(entry.attempt for entry in entries)
        assert entries[-1].nonce == run.nonce
        run.release()
        if not killed:
            break
    assert n > 15


# --- stores that cannot do it --------------------------------------------------------------------


def careless() -> MemoryObjects:
    return MemoryObjects("memory://bucket", conditional_put=False)


def test_a_store_that_ignores_create_if_absent_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = careless()
    log = f"training.fault_tolerance.state_log_path={tmp_path}/log.jsonl"
    for changes, reason in (
        ((), "the state log needs"),
        (("storage.single_committer=true",), "the state log needs"),
        ((log,), "this store ignores create-if-absent"),
    ):
        with pytest.raises(ConfigError, match=reason):
            run(store, changes=changes)
    assert list(store.list()) == []
    assert list(tmp_path.iterdir()) == []


def test_with_one_committer_and_a_locked_log_it_runs_to_the_same_end(tmp_path: Path, reference: Left) -> None:
    store = careless()
    changes = (f"training.fault_tolerance.state_log_path={tmp_path}/log.jsonl", "storage.single_committer=true")
    for steps in (1, STEPS):
        result = run(store, steps, changes=changes)
    assert result.policy_digest == reference.history.policy_digest
    paths = [stat.path for stat in run_folder(store).list("rollouts")]
    assert "rollouts/epoch_0/batch_0/attempt_1/samples.jsonl" in paths
    assert "rollouts/epoch_0/batch_2/attempt_2/samples.jsonl" in paths
    assert (
        run_folder(store).get("rollouts/epoch_0/batch_0/attempt_1/samples.jsonl")
        == reference.batches["epoch_0/batch_0"]
    )


def test_with_one_committer_a_second_controller_meets_the_lock_of_the_log(tmp_path: Path) -> None:
    store, files = careless(), LocalStorage(str(tmp_path))
    first = open_run(store, files, LOG, resume="auto", code_version="0")
    with pytest.raises(RunBusy, match=f"process {os.getpid()}"):
        open_run(store, files, LOG, resume="auto", code_version="0", take_over=True)
    first.release()
    open_run(store, files, LOG, resume="auto", code_version="0").release()
