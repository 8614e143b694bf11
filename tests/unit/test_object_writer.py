"""The writer on object stores: the same three objects, created once, and replacements for what is damaged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest
from verl_core.committed import content_hash, create, seal
from verl_core.errors import (
    DamagedBatch,
    ObjectExists,
    ObjectMissing,
    RunMismatch,
    StorageConflict,
    StorageTimeout,
    StorageUnavailable,
)
from verl_core.rollout.listing import Found, find, free, standing, whole
from verl_core.rollout.objects import ObjectWriter
from verl_core.rollout.writer import AtomicConfig, AtomicWriter, build_atomic
from verl_core.testing.faulty_objects import Death, Operation, Watched
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.types import BatchKey, BatchRef, BatchSpec, BuildContext, ObjectStat, RunIdentity

from tests.support.made import samples, spec

NAMES = ("SUCCESS", "meta.json", "samples.jsonl")


@pytest.fixture
def store() -> MemoryObjects:
    return MemoryObjects()


def writer(store: MemoryObjects, *, run: str = "run", branch: int = 0, attempt: int = 0) -> ObjectWriter:
    return ObjectWriter(store, RunIdentity(run, branch, attempt), clock=lambda: 1.8e9, seed=7)


def commit(at: ObjectWriter, of: BatchSpec, *, seed: int = 0, worker: str = "rollout-0") -> BatchRef:
    return at.commit(at.stage(of, samples(of, seed=seed), worker=worker, seed=7))


def paths(store: MemoryObjects) -> list[str]:
    return [stat.path for stat in store.list()]


def test_a_committed_batch_has_its_three_objects_and_comes_back(store: MemoryObjects) -> None:
    of = spec(3, epoch=1, version=2)
    at = writer(store, branch=1, attempt=5)
    ref = commit(at, of)
    assert paths(store) == [f"epoch_1/batch_3/{name}" for name in NAMES]
    data = store.get("epoch_1/batch_3/samples.jsonl")
    files = MemoryFiles()
    on_disk = AtomicWriter(files, RunIdentity("run", 1, 5), clock=lambda: 1.8e9)
    assert on_disk.commit(on_disk.stage(of, samples(of), worker="rollout-0", seed=7)) == ref
    assert [stat.path for stat in files.list()] == paths(store)
    for name in NAMES:
        assert files.get(f"epoch_1/batch_3/{name}") == store.get(f"epoch_1/batch_3/{name}"), "as on a file system"
    assert ref.samples_hash == content_hash(data)
    assert [(s.row, s.index, s.reward) for s in at.load(ref)] == [(s.row, s.index, s.reward) for s in samples(of)]


def test_who_finishes_anothers_commit_says_that_the_worker_is_not_known(store: MemoryObjects) -> None:
    at = writer(store)
    store.put(
        "epoch_0/batch_0/samples.jsonl", at.stage(spec(), samples(spec()), worker="a", seed=7).files["samples.jsonl"]
    )
    ref = commit(writer(store, attempt=4), spec(), worker="b")
    meta = orjson.loads(store.get("epoch_0/batch_0/meta.json"))
    assert (meta["worker_id"], meta["attempt"], meta["seed"]) == ("b", 4, 7), "with equal bytes it is one's own"
    store.delete("epoch_0")
    other = [replace(s, reward=s.reward + 1) for s in samples(spec())]
    store.put("epoch_0/batch_0/samples.jsonl", at.stage(spec(), other, worker="a", seed=7).files["samples.jsonl"])
    found = commit(writer(store, attempt=4), spec(), worker="b")
    meta = orjson.loads(store.get("epoch_0/batch_0/meta.json"))
    assert (meta["worker_id"], meta["attempt"], meta["seed"]) == ("", 4, 7)
    assert found.samples_hash != ref.samples_hash
    assert [s.reward for s in at.load(found)] == [s.reward for s in other]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("other", "seed", "reason"),
    [
        (spec(version=1), 0, "another branch, policy version or other prompts"),
        (spec(rows=(4, 3)), 0, "other prompts|other seeds"),
        (spec(), 1, "other seeds"),
    ],
)
def test_what_is_of_another_schedule_is_never_adopted(
    store: MemoryObjects, other: BatchSpec, seed: int, reason: str, half: bool
) -> None:
    commit(writer(store), spec())
    if half:
        store.delete("epoch_0/batch_0/SUCCESS")
        store.delete("epoch_0/batch_0/meta.json")
    before = paths(store)
    with pytest.raises(RunMismatch, match=reason):
        commit(writer(store), other, seed=seed)
    assert paths(store) == before


def test_a_batch_of_another_run_or_branch_is_never_adopted(store: MemoryObjects) -> None:
    ref = commit(writer(store, run="theirs"), spec())
    ours = writer(store, run="ours")
    for use in (lambda: commit(ours, spec()), lambda: ours.load(ref), lambda: list(ours.scan())):
        with pytest.raises(RunMismatch, match="run theirs"):
            use()
    with pytest.raises(RunMismatch, match="another branch"):
        commit(writer(store, run="theirs", branch=1), spec())


def test_a_batch_of_another_format_is_no_damage_and_nothing_is_made_in_its_place(store: MemoryObjects) -> None:
    ref = commit(writer(store), spec())
    path = "epoch_0/batch_0/meta.json"
    fields = orjson.loads(store.get(path))
    del fields["hash"]
    store.put(path, seal({**fields, "format": 2}))
    at = writer(store)
    for use in (lambda: at.load(ref), lambda: commit(at, spec()), lambda: list(at.scan())):
        with pytest.raises(RunMismatch, match="format 2 is not known"):
            use()


def test_samples_of_another_batch_under_this_name_are_damage(store: MemoryObjects) -> None:
    commit(writer(store), spec(1))
    store.put("epoch_0/batch_0/samples.jsonl", store.get("epoch_0/batch_1/samples.jsonl"))
    with pytest.raises(DamagedBatch, match="samples of epoch_0/batch_1"):
        commit(writer(store), spec())
    assert writer(store).sweep() == ["epoch_0/batch_0"]
    assert commit(writer(store), spec()).key == BatchKey(0, 0)


def test_a_record_of_other_samples_is_damage_and_condemned_by_the_next_sweep(store: MemoryObjects) -> None:
    commit(writer(store), spec())
    other = [replace(s, reward=s.reward + 1) for s in samples(spec())]
    data = writer(store).stage(spec(), other, worker="a", seed=7).files["samples.jsonl"]
    store.delete("epoch_0/batch_0/SUCCESS")
    store.put("epoch_0/batch_0/samples.jsonl", data)
    with pytest.raises(DamagedBatch, match="the record is of other samples"):
        commit(writer(store), spec())
    assert writer(store, attempt=1).sweep() == ["epoch_0/batch_0"]
    ref = commit(writer(store, attempt=1), spec())
    assert list(writer(store).scan()) == [ref]
    assert "epoch_0/batch_0/again_1/SUCCESS" in paths(store)


def test_what_does_not_read_back_is_not_committed(store: MemoryObjects) -> None:
    for name in NAMES[1:]:

        class Rotten(MemoryObjects):
            def get(self, path: str, start: int = 0, end: int | None = None, rotten: str = name) -> bytes:
                return super().get(path, start, end)[path.endswith(rotten) :]

        at = Rotten("memory://rotten")
        with pytest.raises(DamagedBatch, match=f"{name}: it reads back differently"):
            commit(writer(at), spec())
        assert "SUCCESS" not in "".join(paths(at))


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["samples.jsonl", "meta.json"])
def test_any_changed_or_lost_byte_is_found_by_load(store: MemoryObjects, name: str) -> None:
    at = writer(store)
    ref = commit(at, spec())
    path = f"epoch_0/batch_0/{name}"
    good = store.get(path)
    for place in range(0, len(good), 7):
        for bad in (good[:place], good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]):
            store.put(path, bad)
            with pytest.raises(DamagedBatch, match=f"batch_0/{name}"):
                at.load(ref)
            with pytest.raises((DamagedBatch, RunMismatch), match="batch_0"):
                commit(at, spec(), seed=1)
    store.put(path, good)
    assert len(at.load(ref)) == 4


def test_a_condemned_batch_is_kept_and_made_again_as_often_as_it_takes(store: MemoryObjects) -> None:
    at = writer(store, attempt=2)
    ref = commit(at, spec())
    for folder in ("", "again_1/", "again_2/"):
        store.put(f"epoch_0/batch_0/{folder}samples.jsonl", b"damage")
        with pytest.raises(DamagedBatch):
            at.load(ref)
        assert at.condemn(ref) == f"epoch_0/batch_0/{folder}".rstrip("/")
        assert list(at.scan()) == []
        assert at.condemn(ref) == "epoch_0/batch_0", "twice is harmless"
        assert at.sweep() == []
        assert commit(at, spec()) == ref
        assert list(at.scan()) == [ref]
        assert len(writer(store).load(ref)) == 4, "by a reader that never scanned"
        assert store.get(f"epoch_0/batch_0/{folder}samples.jsonl") == b"damage"


def test_a_batch_whose_mark_or_samples_are_lost_can_be_condemned_and_made_again(store: MemoryObjects) -> None:
    for lost in NAMES:
        at = writer(store)
        ref = commit(at, spec())
        store.delete(f"epoch_0/batch_0/{lost}")
        with pytest.raises(DamagedBatch, match="batch_0"):
            at.load(ref)
        at.condemn(ref)
        assert commit(at, spec()) == ref
        assert len(at.load(ref)) == 4
        store.delete("epoch_0")


def test_a_whole_batch_that_the_journal_does_not_know_is_not_loaded_in_its_place(store: MemoryObjects) -> None:
    ref = commit(writer(store), spec())
    with pytest.raises(DamagedBatch, match="journal"):
        writer(store).load(replace(ref, samples_hash="blake3:other"))


# --- scan ----------------------------------------------------------------------------------------


def test_scan_finds_committed_batches_in_the_order_of_their_numbers(store: MemoryObjects) -> None:
    at = writer(store)
    refs = [commit(at, spec(batch, epoch=epoch)) for epoch, batch in ((1, 0), (0, 10), (0, 9))]
    assert list(at.scan()) == refs[::-1]
    assert list(at.scan(known=[refs[2].key])) == [refs[1], refs[0]]
    assert list(writer(MemoryObjects()).scan()) == []


def test_scan_leaves_out_what_is_not_whole_and_says_so(store: MemoryObjects, caplog: pytest.LogCaptureFixture) -> None:
    at = writer(store)
    refs = [commit(at, spec(batch)) for batch in range(4)]
    store.delete("epoch_0/batch_1/SUCCESS")
    store.delete("epoch_0/batch_2/meta.json")
    store.put("epoch_0/batch_3/meta.json", b"{")
    with caplog.at_level(logging.WARNING):
        assert list(at.scan()) == [refs[0]]
    assert [f"batch_{b}" in record.getMessage() for b, record in zip((2, 3), caplog.records, strict=True)] == [True] * 2


def test_a_start_costs_one_listing_and_nothing_for_what_the_journal_knows(store: MemoryObjects) -> None:
    refs = [commit(writer(store), spec(batch)) for batch in range(20)]
    seen: list[Operation] = []

    class Log:
        def __call__(self, operation: Operation, call):  # type: ignore[no-untyped-def]
            seen.append(operation)
            return call()

    at = ObjectWriter(Watched(store, Log()), RunIdentity("run", 0, 1))
    assert list(at.scan(known=[ref.key for ref in refs[:-2]])) == refs[-2:]
    assert at.sweep() == []
    assert [operation.name for operation in seen] == ["list", "stat", "get", "stat", "get"]


def listed(*names: str) -> Iterator[ObjectStat]:
    return (ObjectStat(name, 0, 0.0) for name in sorted(names))


def test_a_listing_is_taken_apart_by_batches() -> None:
    found = find(
        listed(
            ".condemned/epoch_0_batch_1.0/SUCCESS", "RUN", "epoch_0/batch_1/SUCCESS", "epoch_0/batch_1/meta.json",
            "epoch_0/batch_10/samples.jsonl", "epoch_0/batch_2/CONDEMNED", "epoch_0/batch_2/SUCCESS",
            "epoch_0/batch_2/again_1/SUCCESS", "epoch_0/batch_3/attempt_12/SUCCESS",
            "epoch_0/batch_3/attempt_2/SUCCESS",
            "epoch_0/batch_03/SUCCESS", "epoch_1/other", "epoch_0/batch_4/not_SUCCESS",
        )
    )  # fmt: skip
    expected = {BatchKey(0, 1): "", BatchKey(0, 2): "again_1/", BatchKey(0, 3): "attempt_2/"}
    assert found == Found(expected, {BatchKey(0, 10): ("samples.jsonl",), BatchKey(0, 4): ("not_SUCCESS",)})


def test_the_folder_that_counts_and_the_one_that_is_free() -> None:
    assert (standing([]), free([])) == (None, "")
    assert (standing(["SUCCESS"]), free(["SUCCESS"])) == ("", "")
    condemned = ["CONDEMNED", "SUCCESS", "again_1/SUCCESS", "again_1/CONDEMNED"]
    assert (standing(condemned), free(condemned)) == (None, "again_2/")
    attempts = ["attempt_3/SUCCESS", "attempt_3/CONDEMNED", "attempt_3/again_1/SUCCESS", "attempt_10/SUCCESS"]
    assert whole(attempts) == ["attempt_3/again_1/", "attempt_10/"]
    assert free(attempts, "attempt_3/") == "attempt_3/again_1/"


# --- create once ---------------------------------------------------------------------------------


def test_create_tells_whose_the_object_is(store: MemoryObjects) -> None:
    assert create(store, "a", b"1") is None
    assert create(store, "a", b"1") is None, "one's own earlier try"
    assert create(store, "a", b"2") == b"1"


@pytest.mark.parametrize("error", [StorageTimeout, StorageUnavailable, StorageConflict])
def test_a_call_without_a_clear_answer_is_decided_by_looking(store: MemoryObjects, error: type[StorageTimeout]) -> None:
    class Unclear(MemoryObjects):
        lands = False

        def put(self, path: str, data: object, *, if_absent: bool = False) -> int:
            if self.lands:
                super().put(path, data, if_absent=if_absent)  # type: ignore[arg-type]
            raise error("no answer")

    at = Unclear()
    with pytest.raises(error):
        create(at, "a", b"1")
    at.lands = True
    assert create(at, "a", b"1") is None
    assert create(at, "b", b"1") is None


def test_a_name_that_is_taken_by_nothing_is_to_be_tried_again(store: MemoryObjects) -> None:
    class TwoMinds(MemoryObjects):
        def put(self, path: str, data: object, *, if_absent: bool = False) -> int:
            raise ObjectExists("taken")

        def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
            raise ObjectMissing("nothing")

    with pytest.raises(StorageConflict):
        create(TwoMinds(), "a", b"1")


def test_without_create_if_absent_it_looks_first() -> None:
    store = MemoryObjects(conditional_put=False)
    death = Death(10**9)
    at = Watched(store, death)
    assert create(at, "a", b"1", conditional=False) is None
    assert create(at, "a", b"1", conditional=False) is None
    assert create(at, "a", b"2", conditional=False) == b"1"
    assert store.get("a") == b"1"
    assert death.operations == 4


# --- build ---------------------------------------------------------------------------------------


def test_the_atomic_writer_is_built_for_what_the_storage_can_do(store: MemoryObjects) -> None:
    context = BuildContext(run_id="run", branch=2, attempt=3, seed=11)
    at = build_atomic(AtomicConfig(), context, store)
    assert isinstance(at, ObjectWriter)
    ref = commit(at, spec())
    assert (ref.branch, ref.attempt) == (2, 3)
    assert isinstance(build_atomic(AtomicConfig(), context, MemoryFiles()), AtomicWriter)
