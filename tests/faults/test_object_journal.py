"""The state log in objects: created once, fenced, folded, with faults and second writers at every operation.

Folds are of 3 and 6 lines here, so that short logs are folded, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import count, groupby, pairwise

import pytest
from verl_core.errors import JournalError, RunBusy, StorageTimeout
from verl_core.protocols import Storage
from verl_core.state import segments
from verl_core.state.journal import Log, read_log
from verl_core.state.lines import Entry, made, parse
from verl_core.state.segments import SegmentLog, Segments, claim, read_segments
from verl_core.testing.faulty_objects import Death, Killed, LostAnswer, Puppet, Watched
from verl_core.testing.memory import MemoryObjects

LOG = "state_log.jsonl"
GROUPS = (1, 1, 2, 1, 3, 1, 1, 4, 1, 1, 2)  # lines that are written at once


@pytest.fixture(autouse=True)
def _small_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "FOLD", 3)
    monkeypatch.setattr(segments, "WIDE", 6)


def patiently(task: Callable[[], object]) -> None:
    for _ in range(3):
        try:
            task()
        except StorageTimeout:
            continue
        return
    task()


class Writer:
    """What a controller does to the log: read, claim, write, fold."""

    def __init__(self, storage: Storage, attempt: int) -> None:
        self._storage, self._identity = storage, ("run", 0, attempt, f"nonce {attempt}")
        while True:
            log = read_segments(storage, LOG)
            self._last: Entry | None = log.entries[-1] if log.entries else None
            found = claim(storage, LOG, log, self._line("claimed", 0))
            if isinstance(found, SegmentLog):
                break
        self.sink = Segments(storage, LOG, found, begins=False)

    def write(self, lines: int) -> None:
        group = b"".join(self._line("event", n) for n in range(lines))
        patiently(lambda: self.sink.write(group))
        if self.sink.fold_due:
            self.sink.fold()

    def _line(self, event: str, payload: int) -> bytes:
        line = made(self._last, 1.5, self._identity, "TRAIN", event, {"n": payload})
        self._last = parse(line, "")
        return line


def write_all(storage: Storage, attempt: int = 1) -> None:
    writer = Writer(storage, attempt)
    for lines in GROUPS:
        writer.write(lines)


def written(store: Storage) -> list[tuple[int, str]]:
    return [(entry.attempt, entry.event) for entry in read_log(store, LOG).entries]


WHOLE = [(1, "claimed"), *[(1, "event")] * sum(GROUPS)]


def test_the_log_is_read_back_and_few_objects_are_left() -> None:
    store = MemoryObjects()
    write_all(store)
    assert written(store) == WHOLE
    names = [stat.path.removeprefix("state_log.d/") for stat in store.list()]
    assert names == [
        "000000000000-000000000005.jsonl",
        "000000000000.jsonl",
        "000000000006-000000000011.jsonl",
        "000000000012-000000000017.jsonl",
        "000000000017.jsonl",
    ]  # fmt: skip; the last segment has a line that no fold holds yet
    write_all(store, 2)
    assert written(store) == [*WHOLE, *[(2, event) for _, event in WHOLE]]
    assert store.stat("state_log.d/000000000019.jsonl") is not None, "what opens an attempt is never deleted"


@pytest.mark.parametrize("late", [None, 0, 1, 2, 3, 4, 6, 9, 14])
@pytest.mark.parametrize("landed", [False, True])
def test_an_answer_that_is_lost_at_any_change_costs_nothing(late: int | None, landed: bool) -> None:
    for n in count(1):
        store = MemoryObjects()
        lost = LostAnswer(n, landed=landed, late=late)
        try:
            write_all(Watched(store, lost))
        except StorageTimeout:
            assert n == 1, "the claim is the caller's to repeat"
            write_all(store, 1)
        assert written(store)[-len(WHOLE) :] == WHOLE
        assert len(written(store)) - len(WHOLE) in (0, 1 if n == 1 else 0)
        write_all(store, 2)
        assert len(written(store)) >= 2 * len(WHOLE)
        if lost.changes < n:
            break
    assert n > 20


@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_operation_loses_no_line_that_was_written(after: bool) -> None:
    for n in count(1):
        store, death = MemoryObjects(), Death(n, after=after)
        done: list[int] = []
        try:
            writer = Writer(Watched(store, death), 1)
            for lines in GROUPS:
                writer.write(lines)
                done.append(lines)
        except Killed:
            there = written(store)
            assert there == WHOLE[: len(there)]
            assert len(there) >= (1 + sum(done) if done else 0)
        before = written(store)
        write_all(store, 2)
        assert written(store) == [*before, *[(2, event) for _, event in WHOLE]]
        if not death.happened:
            break
    assert n > 30


def test_of_two_controllers_one_frozen_at_any_operation_and_woken_later_only_the_second_goes_on() -> None:
    for frozen in count():
        store = MemoryObjects()
        one = Puppet(store, write_all)
        done = one.go(frozen)
        write_all(store, 2)
        first, second = written(store), [(2, event) for _, event in WHOLE]
        assert first[-len(second) :] == second
        kept = first[: -len(second)]
        assert kept == WHOLE[: len(kept)]
        if done or len(kept) == len(WHOLE):
            one.end()  # it had written its last line
        elif not kept:
            one.end()  # frozen before its claim: it takes the next number, and the other one is fenced
            assert written(store) == [*second, *WHOLE]
            continue
        else:
            with pytest.raises(RunBusy, match=r"attempt 2 \(nonce nonce 2\)"):
                one.end()
        assert written(store) == first
        if done:
            break
    assert frozen > 30


def test_two_controllers_interleaved_anywhere_never_mix_their_lines() -> None:
    for first in range(0, 44, 2):
        for second in range(0, 44, 3):
            store = MemoryObjects()
            one, other = Puppet(store, write_all), Puppet(store, lambda s: write_all(s, 2))
            one.go(first)
            other.go(second)
            ended = []
            for puppet in (one, other):
                try:
                    puppet.end()
                    ended.append(True)
                except RunBusy:
                    ended.append(False)
            there = written(store)
            changes = sum(1 for before, after in pairwise(there) if before[0] != after[0])
            assert changes <= 1, "each has written in one piece"
            assert any(ended)
            last = there[-1][0]
            assert ended[last - 1], "who wrote last was not fenced"
            if there[0][0] != last and not ended[there[0][0] - 1]:
                assert [line for line in there if line[0] == last] == [(last, event) for _, event in WHOLE]


@pytest.mark.parametrize("seed", range(40))
def test_five_controllers_in_any_order_each_write_in_one_piece_or_stop(seed: int) -> None:
    dice, store = random.Random(seed), MemoryObjects()
    puppets = {n: Puppet(store, lambda s, n=n: write_all(s, n)) for n in range(1, 6)}  # type: ignore[misc]
    waiting = list(puppets)
    while waiting:
        chosen = dice.choice(waiting)
        if puppets[chosen].go(dice.choice((1, 2, 5, 20))):
            waiting.remove(chosen)
    fenced = set()
    for n, puppet in puppets.items():
        try:
            puppet.end()
        except RunBusy:
            fenced.add(n)
    there = written(store)
    pieces = [(attempt, [*lines]) for attempt, lines in groupby(there, key=lambda line: line[0])]
    assert len(pieces) == len({attempt for attempt, _ in pieces}), "one piece each"
    for attempt, lines in pieces:
        full = [(attempt, event) for _, event in WHOLE]
        assert lines == full[: len(lines)]
        assert (lines == full) or attempt in fenced
    assert {attempt for attempt, _ in pieces} == set(puppets), "a claim that was void is made again"
    assert pieces[-1][0] not in fenced


def test_a_reader_beside_a_controller_that_writes_and_folds_sees_a_prefix_at_any_moment() -> None:
    for shift in range(60):
        store = MemoryObjects()
        one = Puppet(store, write_all)
        reader = Puppet(store, lambda s: written(s))
        one.go(shift)
        for pace in (1, 2, 5):
            if reader.go(1):
                break
            one.go(pace)
        while not reader.go(2):
            one.go(1)
        there = reader.end()
        assert there == WHOLE[: len(there)]
        one.end()
        assert written(store) == WHOLE


def test_folds_of_a_zombie_and_of_its_successor_lose_nothing() -> None:
    for frozen in range(4, 40):
        for again in range(0, 60, 7):
            store = MemoryObjects()
            one = Puppet(store, write_all)
            one.go(frozen)
            other = Puppet(store, lambda s: write_all(s, 2))
            other.go(again)
            with suppress(RunBusy):
                one.end()
            try:
                other.end()
            except RunBusy:
                continue
            there = written(store)
            assert [line for line in there if line[0] == 2] == [(2, event) for _, event in WHOLE]


# --- damage --------------------------------------------------------------------------------------


def names(store: MemoryObjects) -> list[str]:
    return [stat.path for stat in store.list()]


def test_any_flipped_byte_is_an_error_that_names_the_object() -> None:
    store = MemoryObjects()
    write_all(store)
    for name in names(store):
        if name.endswith("/000000000000.jsonl"):
            continue  # a fence: the fold has its line
        good = store.get(name)
        held = good.index(b"\n") + 1 if name.endswith("/000000000017.jsonl") else 0  # its first line is in a fold, too
        for place in range(held, len(good), 97):
            store.put(name, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(JournalError, match=f"{name.split('/')[1]}:|chain|missing"):
                read_log(store, LOG)
        store.put(name, good)
    assert written(store) == WHOLE


def test_a_lost_object_is_an_error_that_says_which_lines_are_missing() -> None:
    store = MemoryObjects()
    write_all(store)
    name = "state_log.d/000000000006-000000000011.jsonl"
    store.delete(name)
    with pytest.raises(JournalError, match="lines 6 to 11 are missing"):
        read_log(store, LOG)


def test_what_is_no_log_object_is_left_alone() -> None:
    store = MemoryObjects()
    for name in ("state_log.d/notes.txt", "state_log.d/000000000000-000000000001.jsonl", "state_log.jsonl"):
        store.put(name, b"mine")
    write_all(store)
    assert written(store) == WHOLE
    assert store.get("state_log.jsonl") == b"mine"


def test_something_else_in_place_of_the_next_line_stops_the_controller() -> None:
    store = MemoryObjects()
    writer = Writer(store, 1)
    store.put("state_log.d/000000000001.jsonl", b"not a line")
    with pytest.raises(RunBusy, match="something else was written"):
        writer.write(1)


def test_an_empty_store_is_an_empty_log() -> None:
    log = read_log(MemoryObjects(), LOG)
    assert isinstance(log, Log)
    assert log.entries == ()
