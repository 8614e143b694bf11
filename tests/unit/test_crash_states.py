"""The model of a power cut: what may be lost, what may not, and that a recording misses nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from verl_core.testing.crash_states import CrashState, Volume, choices, crash_state, crash_states
from verl_core.testing.disk import Killed, Opened, Operation, Recording, Renamed, Synced, Wrote, record
from verl_core.testing.torn import Content
from verl_core.testing.trees import Tree, materialise, tree_of


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    with record(str(tmp_path)) as found:
        yield found


def write(path: Path, data: bytes, *, sync: bool = True, flags: int = os.O_CREAT) -> None:
    handle = os.open(path, os.O_WRONLY | flags, 0o666)
    os.write(handle, data)
    if sync:
        os.fsync(handle)
    os.close(handle)


def sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)


def whole(operations: list[Operation], start: Tree | None = None) -> Tree:
    volume = Volume(start or {})
    for operation in operations:
        volume.apply(operation)
    return volume.whole()


def ends(recording: Recording, start: Tree | None = None, since: int | None = None) -> list[Tree]:
    """The states of a cut after the last operation, or of all cuts from one on."""
    after = len(recording.operations) if since is None else since
    states = crash_states(recording.operations, random.Random(0), start=start or {}, since=after, limit=4096)
    return list({state.digest(): state.tree for state in states}.values())


# --- names -----------------------------------------------------------------------------------


def test_a_file_that_was_synced_may_lose_its_name_but_never_its_content(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "a", b"data")
    assert ends(recording) == [{}, {"a": b"data"}]
    sync(tmp_path)
    assert ends(recording) == [{"a": b"data"}]


def test_names_are_lost_independently_and_with_the_folder_that_holds_them(tmp_path: Path, recording: Recording) -> None:
    (tmp_path / "d").mkdir()
    for name in "ab":
        write(tmp_path / "d" / name, b"")
    found = ends(recording)
    assert len(found) == 5
    assert {} in found
    assert {"d": None, "b": b""} not in found
    assert all({"d": None, **{f"d/{n}": b"" for n in names}} in found for names in ("", "a", "b", "ab"))
    sync(tmp_path / "d")
    assert ends(recording) == [{}, {"d": None, "d/a": b"", "d/b": b""}]


def test_a_rename_is_atomic_and_durable_with_the_folder_that_it_leads_into(
    tmp_path: Path, recording: Recording
) -> None:
    for name in ("from/x", "to"):
        (tmp_path / name).mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "from"):
        sync(folder)
    os.rename(tmp_path / "from/x", tmp_path / "to/y")
    before, after = {"from": None, "from/x": None, "to": None}, {"from": None, "to": None, "to/y": None}
    assert ends(recording) == [before, after]
    sync(tmp_path / "from")
    assert ends(recording) == [before, after]
    sync(tmp_path / "to")
    assert ends(recording) == [after]


def test_a_file_that_is_renamed_over_is_the_old_one_or_the_new_one(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "a", b"old")
    sync(tmp_path)
    since = len(recording.operations)
    write(tmp_path / "b", b"new")
    os.replace(tmp_path / "b", tmp_path / "a")
    assert {tree["a"] for tree in ends(recording, since=since)} == {b"old", b"new"}
    sync(tmp_path)
    assert ends(recording) == [{"a": b"new"}]


def test_a_folder_has_one_name_at_a_time_however_often_it_moved(tmp_path: Path, recording: Recording) -> None:
    for name in ("s", "t", "u", "s/x"):
        (tmp_path / name).mkdir()
    sync(tmp_path)
    os.rename(tmp_path / "s/x", tmp_path / "t/x")
    os.rename(tmp_path / "t/x", tmp_path / "u/x")
    assert {tuple(sorted(tree.keys() - {"s", "t", "u"})) for tree in ends(recording)} == {
        (), ("s/x",), ("t/x",), ("u/x",)
    }  # fmt: skip
    sync(tmp_path / "u")
    assert ends(recording) == [{"s": None, "t": None, "u": None, "u/x": None}]


def test_a_name_that_is_given_again_belongs_to_the_newcomer(tmp_path: Path, recording: Recording) -> None:
    for name in ("s", "t", "s/x"):
        (tmp_path / name).mkdir()
    for name in (".", "s"):
        sync(tmp_path / name)
    os.rename(tmp_path / "s/x", tmp_path / "t/x")
    (tmp_path / "s/x").mkdir()
    write(tmp_path / "s/x/new", b"")
    for name in ("s/x", "s"):
        sync(tmp_path / name)
    lost: Tree = {"s": None, "s/x": None, "s/x/new": b"", "t": None}
    assert ends(recording) == [lost, {**lost, "t/x": None}]


def test_what_is_removed_may_be_back_until_its_folder_is_synced(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "a", b"data")
    os.link(tmp_path / "a", tmp_path / "b")
    sync(tmp_path)
    os.unlink(tmp_path / "a")
    assert ends(recording) == [{"a": b"data", "b": b"data"}, {"b": b"data"}]
    sync(tmp_path)
    assert ends(recording) == [{"b": b"data"}]


# --- contents --------------------------------------------------------------------------------


def test_content_that_was_not_synced_is_lost_kept_cut_or_torn(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "log", b"durable\n")
    sync(tmp_path)
    write(tmp_path / "log", b"one\ntwo\n", sync=False, flags=os.O_APPEND)
    found = {tree["log"] for tree in ends(recording)}
    zeros = b"\0"
    assert found >= {
        b"durable\n",
        b"durable\none\ntwo\n",
        b"durable\no",
        b"durable\none\n",
        b"durable\none\ntwo",
        b"durable\n" + 8 * zeros,
        b"durable\none\n" + 4 * zeros,
        b"durable\n" + 4 * zeros + b"two\n",
    }
    assert all(content is not None and content.startswith(b"durable\n") for content in found)
    assert max(len(content or b"") for content in found) == 16


def test_what_is_cut_off_may_be_back_until_the_file_is_synced() -> None:
    content = Content(b"whole line\ntorn")
    content.resize(11)
    assert content.outcomes() == (b"whole line\ntorn", b"whole line\n")
    content.sync()
    assert not content.dirty
    assert content.end(0) == b"whole line\n"


def test_a_file_emptied_and_written_anew_may_be_old_empty_new_or_torn(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path / "a", b"old content")
    sync(tmp_path)
    write(tmp_path / "a", b"new", sync=False, flags=os.O_TRUNC)
    assert {tree["a"] for tree in ends(recording)} >= {b"old content", b"", b"new", b"n", b"\0\0\0"}


# --- recordings ------------------------------------------------------------------------------


def test_the_operations_lead_to_the_files_on_disk(tmp_path: Path, recording: Recording) -> None:
    (tmp_path / "d").mkdir()
    write(tmp_path / "d/a", b"12345")
    handle = os.open(tmp_path / "d/a", os.O_RDWR)
    os.lseek(handle, 2, os.SEEK_SET)
    os.write(handle, b"xy")
    os.ftruncate(handle, 4)
    os.rename(tmp_path / "d/a", tmp_path / "b")
    os.write(handle, b"z")
    os.close(handle)
    os.rmdir(tmp_path / "d")
    assert whole(recording.operations) == tree_of(str(tmp_path)) == {"b": b"12xyz"}


def test_what_goes_past_the_recorder_shows(tmp_path: Path, recording: Recording) -> None:
    with open(tmp_path / "a", "wb") as file:
        file.write(b"unseen")
    assert whole(recording.operations) != tree_of(str(tmp_path))
    with pytest.raises(NotImplementedError):
        os.truncate(tmp_path / "a", 1)
    with pytest.raises(NotImplementedError):
        os.symlink("a", tmp_path / "b")


def test_what_happens_elsewhere_is_not_recorded(tmp_path: Path, recording: Recording) -> None:
    write(tmp_path.parent / "beside", b"")
    os.unlink(tmp_path.parent / "beside")
    assert recording.operations == []


def test_the_end_of_a_recording_gives_the_functions_back(tmp_path: Path) -> None:
    before = os.open, os.fsync, os.truncate
    with pytest.raises(ZeroDivisionError), record(str(tmp_path)):
        raise ZeroDivisionError
    assert (os.open, os.fsync, os.truncate) == before


@pytest.mark.parametrize("change", range(1, 7))
def test_a_killed_process_changes_nothing_any_more_not_even_by_its_own_cleanup(
    tmp_path: Path, recording: Recording, change: int
) -> None:
    def work() -> None:
        try:
            write(tmp_path / "temp", b"data")
            os.rename(tmp_path / "temp", tmp_path / "goal")
            sync(tmp_path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(tmp_path / "temp")

    recording.kill_before(change)
    with suppress(Killed):
        work()
    done = [type(o) for o in recording.operations if not isinstance(o, Opened) or o.made]
    assert done == [Opened, Wrote, Synced, Renamed, Synced][: change - 1]
    recording.revive()
    write(tmp_path / "more", b"")
    assert whole(recording.operations) == tree_of(str(tmp_path))


# --- states ----------------------------------------------------------------------------------


def a_commit(root: Path) -> None:
    (root / "staged").mkdir()
    write(root / "staged/a", b"data")
    write(root / "staged/b", b"data")
    sync(root / "staged")
    os.rename(root / "staged", root / "goal")
    sync(root)


def test_every_state_can_be_had_again_from_its_cut_and_choice(tmp_path: Path, recording: Recording) -> None:
    a_commit(tmp_path)
    recording.promise("commit", "goal", "yes")
    states = list(crash_states(recording.operations, random.Random(0), start={}, limit=8))
    assert len(states) > 30
    for state in states:
        again = crash_state(recording.operations, state.cut, state.choice, start={})
        assert (again, again.digest()) == (state, state.digest())
    assert [state.promises for state in states if state.promises] == [{("commit", "goal"): "yes"}]


def test_states_that_keep_the_order_of_names_are_among_those_that_are_drawn(
    tmp_path: Path, recording: Recording
) -> None:
    for name in "abcdefgh":
        write(tmp_path / name, b"")
    drawn = [s.tree for s in crash_states(recording.operations, random.Random(1), start={}, limit=200)]
    for count in range(9):
        assert dict.fromkeys("abcdefgh"[:count], b"") in drawn


def test_a_state_on_disk_is_the_state_and_nothing_else(tmp_path: Path) -> None:
    tree: Tree = {"a": b"1", "d": None, "d/b": b"", "d/e": None}
    for other in ({"x": b""}, tree, tree, {"d": b"a file now"}):
        materialise(other, str(tmp_path))
        assert tree_of(str(tmp_path)) == other


def test_equal_trees_with_other_promises_are_other_states() -> None:
    def state(tree: Tree, **promises: str) -> CrashState:
        return CrashState(3, (1,), tree, {("kind", name): value for name, value in promises.items()})

    states = [state({}), state({"a": None}), state({"a": b""}), state({"a": b"x"}), state({"a": b"x"}, a="1")]
    assert len({s.digest() for s in states}) == len(states)


@pytest.mark.parametrize(
    ("ways", "limit", "count"), [([], 5, 1), ([2, 3], 6, 6), ([2, 2, 2], 4, 4), ([2] * 30, 50, 50)]
)
def test_choices_are_all_or_as_many_as_asked_for_and_never_twice(ways: list[int], limit: int, count: int) -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        return list(choices(ways, limit, random.Random(seed)))

    found = drawn(3)
    assert len(found) == len(set(found)) == count
    assert {(0,) * len(ways), tuple(n - 1 for n in ways)} <= set(found)
    assert found == drawn(3)
