"""What a call of the local storage returned for is there after any power cut, and what it replaces was until then.

Each call is recorded, and every state that the power may leave behind is looked at (``crash_states``): right after the
call for what it promises, within the call for what must not be lost on the way.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import ObjectExists
from verl_core.rollout.writer import AtomicWriter
from verl_core.testing.crash_states import crash_states
from verl_core.testing.disk import record
from verl_core.testing.trees import Tree, tree_of
from verl_core.types import RunIdentity
from verl_core_storage import posix
from verl_core_storage.local import LocalStorage

from tests.support.made import samples, spec, state

Call = Callable[[LocalStorage], object]


class Cuts:
    """A storage whose content is durable, and what power cuts make of a call."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        root.mkdir()

    def durable(self, prepare: Call) -> None:
        prepare(LocalStorage(self._root))

    def of(self, call: Call) -> tuple[list[Tree], list[Tree]]:
        """The states within the call, and those after it."""
        start = tree_of(self._root)
        with record(self._root) as recording:
            call(LocalStorage(self._root))
        done, dice = recording.operations, random.Random(0)
        within = [s.tree for s in crash_states(done, dice, start=start, limit=256) if s.cut < len(done)]
        return within, [s.tree for s in crash_states(done, dice, start=start, since=len(done), limit=256)]


@pytest.fixture
def cuts(tmp_path: Path) -> Cuts:
    return Cuts(tmp_path / "root")


@pytest.mark.parametrize("if_absent", [False, True])
def test_what_was_put_is_there_with_its_folders_whole_or_not_at_all(cuts: Cuts, if_absent: bool) -> None:
    within, after = cuts.of(lambda storage: storage.put("a/b/c", [b"one", b"two"], if_absent=if_absent))
    assert {tree.get("a/b/c") for tree in after} == {b"onetwo"}
    assert {tree.get("a/b/c") for tree in within} <= {None, b"onetwo"}


def test_a_put_onto_an_object_leaves_the_old_one_until_the_new_one_is_durable(cuts: Cuts) -> None:
    cuts.durable(lambda storage: storage.put("a/b", b"old"))
    within, after = cuts.of(lambda storage: storage.put("a/b", b"new"))
    assert {tree["a/b"] for tree in after} == {b"new"}
    assert {tree["a/b"] for tree in within} == {b"old", b"new"}


def stage(storage: LocalStorage) -> None:
    storage.write("tmp/one/data", b"data")
    storage.write("tmp/one/sub/more", b"more")


def test_a_published_folder_is_there_with_all_that_was_staged(cuts: Cuts) -> None:
    def call(storage: LocalStorage) -> None:
        stage(storage)
        storage.publish("tmp/one", "deep/two")

    within, after = cuts.of(call)
    whole = {"deep/two": None, "deep/two/data": b"data", "deep/two/sub": None, "deep/two/sub/more": b"more"}
    for tree in after:
        assert whole.items() <= tree.items()
    for tree in within:
        assert "deep/two" not in tree or whole.items() <= tree.items(), "the whole folder, or none"


def test_what_was_written_is_durable_where_it_is_named(cuts: Cuts) -> None:
    """The content; the name is ``publish``'s."""
    _, after = cuts.of(stage)
    assert {tree["tmp/one/data"] for tree in after if "tmp/one/data" in tree} == {b"data"}


def test_appended_lines_are_there_each_time(cuts: Cuts) -> None:
    within, after = cuts.of(lambda storage: storage.append("logs/log", b"one\n"))
    assert {tree.get("logs/log") for tree in after} == {b"one\n"}
    assert {tree.get("logs/log", b"") for tree in within} > {b"", b"one\n"}, (
        "a cut may tear it: that is the log's concern"
    )

    def twice(storage: LocalStorage) -> None:
        storage.append("logs/log", b"two\n")
        storage.append("logs/log", b"three\n")

    within, after = cuts.of(twice)
    assert {tree["logs/log"] for tree in after} == {b"one\ntwo\nthree\n"}
    assert {str(tree["logs/log"])[:6] for tree in within} == {"b'one\\"}, "what was durable stays"


def test_a_log_that_a_dead_process_made_is_made_durable_by_the_next_line(cuts: Cuts) -> None:
    """Its name may not have been: the process died before its own sync."""

    def two_lives(storage: LocalStorage) -> None:
        storage.append("log", b"one\n", sync=False)
        LocalStorage(storage.uri).append("log", b"two\n")

    _, after = cuts.of(two_lives)
    assert {tree.get("log") for tree in after} == {b"one\ntwo\n"}


def test_a_cut_log_stays_cut(cuts: Cuts) -> None:
    cuts.durable(lambda storage: storage.append("log", b"one\ntorn"))
    _, after = cuts.of(lambda storage: storage.truncate("log", 4))
    assert {tree["log"] for tree in after} == {b"one\n"}


def test_what_was_moved_is_in_the_new_place_only(cuts: Cuts) -> None:
    cuts.durable(lambda storage: [storage.put("from/f/x", b"1"), storage.put("from/y", b"2")])

    def call(storage: LocalStorage) -> None:
        storage.move("from/f", "to/g")
        storage.move("from/y", "to/z")

    _, after = cuts.of(call)
    assert [dict(tree) for tree in after] == [{"from": None, "to": None, "to/g": None, "to/g/x": b"1", "to/z": b"2"}]


def test_what_was_deleted_stays_deleted(cuts: Cuts) -> None:
    cuts.durable(lambda storage: [storage.put("a/b", b"1"), storage.put("c", b"2")])

    def call(storage: LocalStorage) -> None:
        storage.delete("a")
        storage.delete("c")

    _, after = cuts.of(call)
    assert [dict(tree) for tree in after] == [{}]


def died_before_its_sync(storage: LocalStorage, name: str) -> None:
    """A file of another process, whole, but its name not durable yet."""
    os.makedirs(os.path.dirname(f"{storage.uri}/{name}"), exist_ok=True)
    handle = os.open(f"{storage.uri}/{name}", os.O_CREAT | os.O_WRONLY)
    os.write(handle, b"theirs")
    os.fsync(handle)
    os.close(handle)


def test_a_name_that_is_found_taken_is_durable_although_its_maker_died(cuts: Cuts) -> None:
    def call(storage: LocalStorage) -> None:
        died_before_its_sync(storage, "a")
        with suppress(ObjectExists):
            storage.put("a", b"ours", if_absent=True)

    _, after = cuts.of(call)
    assert {tree.get("a") for tree in after} == {b"theirs"}


def test_a_folder_that_is_found_published_is_durable_although_its_maker_died(cuts: Cuts) -> None:
    def call(storage: LocalStorage) -> None:
        stage(storage)
        died_before_its_sync(storage, "two/data")
        storage.publish("two", "target")  # only so that its own names are durable
        os.rename(f"{storage.uri}/target", f"{storage.uri}/taken")
        with suppress(ObjectExists):
            storage.publish("tmp/one", "taken")

    _, after = cuts.of(call)
    assert {tree.get("taken/data") for tree in after} == {b"theirs"}


class DiesBeforeItsSync(LocalStorage):
    """Publishes, and is killed before the name is durable."""

    def publish(self, staged: str, target: str) -> None:
        posix.sync_folders(f"{self.uri}/{staged}")
        posix.make_folder(os.path.dirname(f"{self.uri}/{target}"), set())
        os.rename(f"{self.uri}/{staged}", f"{self.uri}/{target}")


def at(storage: LocalStorage) -> AtomicWriter:
    return AtomicWriter(storage, RunIdentity("run", 0, 0), clock=lambda: 1.8e9)


def commit(storage: LocalStorage) -> None:
    at(storage).commit(at(storage).stage(spec(), samples(spec()), worker="rollout-0", seed=7))


def test_a_batch_that_is_adopted_is_durable_although_its_worker_died(cuts: Cuts) -> None:
    def call(storage: LocalStorage) -> None:
        commit(DiesBeforeItsSync(storage.uri))
        commit(storage)

    _, after = cuts.of(call)
    assert {tree.get("epoch_0/batch_0/SUCCESS") for tree in after} == {b""}


def test_batches_that_a_start_finds_are_durable_although_their_worker_died(cuts: Cuts) -> None:
    """Once the start has swept, and before it counts on them."""

    def call(storage: LocalStorage) -> None:
        commit(DiesBeforeItsSync(storage.uri))
        writer = at(storage)
        assert [ref.key for ref in writer.scan()] == [spec().key]
        writer.sweep()

    _, after = cuts.of(call)
    assert {tree.get("epoch_0/batch_0/SUCCESS") for tree in after} == {b""}


def test_a_checkpoint_that_is_saved_already_is_durable_although_who_saved_it_died(cuts: Cuts) -> None:
    def call(storage: LocalStorage) -> None:
        for folder in (DiesBeforeItsSync(f"{storage.uri}/checkpoints"), storage.child("checkpoints")):
            ShardedCheckpointer(folder, RunIdentity("run", 0, 0)).save(state(5, ranks=1))

    _, after = cuts.of(call)
    assert {tree.get("checkpoints/step_000005/SUCCESS") for tree in after} == {b""}
