"""The atomic writer: a batch is committed once, whole, and only as what it says it is."""

from __future__ import annotations

import logging
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from verl_core.committed import content_hash
from verl_core.errors import DamagedBatch, RunMismatch
from verl_core.rollout.writer import AtomicConfig, AtomicWriter, build_atomic
from verl_core.types import BatchRef, BatchSpec, BuildContext, RunIdentity
from verl_core_storage.local import LocalStorage

from tests.support.made import samples, spec, writer


def commit(at: AtomicWriter, of: BatchSpec, *, seed: int = 0, worker: str = "rollout-0") -> BatchRef:
    return at.commit(at.stage(of, samples(of, seed=seed), worker=worker, seed=7))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_committed_batch_has_its_three_files_and_comes_back(tmp_path: Path) -> None:
    of = spec(3, epoch=1, version=2)
    ref = commit(writer(tmp_path, attempt=5), of)
    assert files(tmp_path) == [f"epoch_1/batch_3/{name}" for name in ("SUCCESS", "meta.json", "samples.jsonl")]
    found = writer(tmp_path).load(ref)
    assert [(s.row, s.index, s.seed, s.reward) for s in found] == [
        (s.row, s.index, s.seed, s.reward) for s in samples(of)
    ]
    assert (ref.key, ref.attempt, ref.policy_version, ref.prompt_rows) == (of.key, 5, 2, (4, 2))
    assert (ref.sample_count, ref.token_count) == (4, 12)
    assert ref.reward_mean == pytest.approx(0.8)


def test_meta_says_who_what_and_when(tmp_path: Path) -> None:
    ref = commit(writer(tmp_path, branch=1, attempt=5), spec())
    meta = orjson.loads((tmp_path / "epoch_0/batch_0/meta.json").read_bytes())
    del meta["hash"]
    data = (tmp_path / "epoch_0/batch_0/samples.jsonl").read_bytes()
    assert meta == {
        "run_id": "run", "branch": 1, "attempt": 5, "epoch": 0, "batch": 0, "policy_version": 0,
        "timestamp": 1.8e9, "worker_id": "rollout-0", "seed": 7, "token_count": 12, "sample_count": 4,
        "reward_mean": ref.reward_mean, "prompt_rows": [4, 2], "samples_hash": content_hash(data),
        "sizes": {"samples.jsonl": len(data)}, "complete": True, "format": 1,
    }  # fmt: skip


def test_staging_writes_nothing_and_tells_the_ref(tmp_path: Path) -> None:
    at = writer(tmp_path)
    staged = at.stage(spec(), samples(spec()), worker="rollout-0", seed=7)
    assert files(tmp_path) == []
    assert at.commit(staged) == staged.ref


def test_samples_of_other_prompts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunMismatch, match="not those of the batch"):
        writer(tmp_path).stage(spec(rows=(4, 3)), samples(spec()), worker="rollout-0", seed=7)


class Watched(LocalStorage):
    """Remembers what was published."""

    seen = ""

    def publish(self, staged: str, target: str) -> None:
        self.seen = staged
        super().publish(staged, target)


def test_the_staged_folder_is_named_after_its_time_attempt_and_batch(tmp_path: Path) -> None:
    storage = Watched(str(tmp_path))
    commit(AtomicWriter(storage, RunIdentity("run", 0, 5), clock=lambda: 1.8e9), spec(3, epoch=1))
    assert re.fullmatch(r"\.staging/rollout_20270115_080000_5_e1_b3_[0-9a-f]{8}", storage.seen)


def test_a_name_that_is_taken_by_something_else_is_never_committed_over(tmp_path: Path) -> None:
    (tmp_path / "epoch_0/batch_0").mkdir(parents=True)
    with pytest.raises(DamagedBatch, match="never committed"):
        commit(writer(tmp_path), spec())
    assert files(tmp_path) == []


# --- a second commit of the same batch -----------------------------------------------------------


def test_a_second_worker_learns_that_it_was_second(tmp_path: Path) -> None:
    first = commit(writer(tmp_path, attempt=1), spec())
    before = (tmp_path / "epoch_0/batch_0/meta.json").read_bytes()
    assert commit(writer(tmp_path, attempt=2), spec(), worker="rollout-1") == first
    assert (tmp_path / "epoch_0/batch_0/meta.json").read_bytes() == before
    assert len(files(tmp_path)) == 3


def test_of_workers_that_commit_one_batch_at_once_all_get_the_same_ref(tmp_path: Path) -> None:
    of = spec()
    gates = []
    for number in range(4):
        read, write = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                at = writer(tmp_path / "rollouts", attempt=number)
                staged = at.stage(of, samples(of), worker=f"rollout-{number}", seed=7)
                os.read(read, 1)
                (tmp_path / f"{number}").write_text(repr(at.commit(staged)))
                code = 0
            finally:
                os._exit(code)
        gates.append(write)
    for gate in gates:
        os.write(gate, b"g")
    assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in gates] == [0] * 4
    refs = {(tmp_path / f"{number}").read_text() for number in range(4)}
    assert refs == {repr(next(iter(writer(tmp_path / "rollouts").scan())))}
    assert len(files(tmp_path / "rollouts")) == 3


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (spec(version=1), "another branch, policy version or other prompts"),
        (spec(rows=(4, 3)), "another branch, policy version or other prompts"),
    ],
)
def test_a_batch_of_another_schedule_is_never_adopted(tmp_path: Path, other: BatchSpec, reason: str) -> None:
    commit(writer(tmp_path), spec())
    with pytest.raises(RunMismatch, match=reason):
        commit(writer(tmp_path), other)


def test_a_batch_with_other_seeds_is_never_adopted(tmp_path: Path) -> None:
    commit(writer(tmp_path), spec())
    with pytest.raises(RunMismatch, match="other seeds"):
        commit(writer(tmp_path), spec(), seed=1)


def test_a_batch_of_another_run_or_branch_is_never_adopted(tmp_path: Path) -> None:
    ref = commit(writer(tmp_path, run="theirs"), spec())
    for use in (lambda at: commit(at, spec()), lambda at: at.load(ref), lambda at: list(at.scan())):
        with pytest.raises(RunMismatch, match="run theirs"):
            use(writer(tmp_path, run="ours"))
    with pytest.raises(RunMismatch, match="another branch"):
        commit(writer(tmp_path, run="theirs", branch=1), spec())


# --- scan ----------------------------------------------------------------------------------------


def test_scan_finds_committed_batches_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    at = writer(tmp_path)
    refs = [commit(at, spec(batch, epoch=epoch)) for epoch, batch in ((1, 0), (0, 10), (0, 9))]
    assert list(at.scan()) == refs[::-1]
    assert list(writer(tmp_path / "nothing").scan()) == []


def test_scan_leaves_out_what_is_not_whole_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    at = writer(tmp_path)
    refs = [commit(at, spec(batch)) for batch in range(5)]
    (tmp_path / "epoch_0/batch_1/SUCCESS").unlink()
    (tmp_path / "epoch_0/batch_2/meta.json").unlink()
    (tmp_path / "epoch_0/batch_3/meta.json").write_bytes(b"{")
    shutil.copytree(tmp_path / "epoch_0/batch_4", tmp_path / "epoch_0/batch_7")
    with caplog.at_level(logging.WARNING):
        assert list(at.scan()) == [refs[0], refs[4]]
    assert [f"batch_{b}" in record.getMessage() for b, record in zip((2, 3, 7), caplog.records, strict=True)] == [
        True
    ] * 3


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["samples.jsonl", "meta.json"])
def test_any_changed_or_lost_byte_of_a_batch_is_found_by_load(tmp_path: Path, name: str) -> None:
    at = writer(tmp_path)
    ref = commit(at, spec())
    file = tmp_path / "epoch_0/batch_0" / name
    good = file.read_bytes()
    for at_byte in range(0, len(good), 7):
        for bad in (good[:at_byte], good[:at_byte] + bytes([good[at_byte] ^ 1]) + good[at_byte + 1 :]):
            file.write_bytes(bad)
            with pytest.raises(DamagedBatch, match=f"batch_0/{name}"):
                at.load(ref)
    file.write_bytes(good)
    assert len(at.load(ref)) == 4


def test_damaged_samples_are_named_with_file_and_line(tmp_path: Path) -> None:
    at = writer(tmp_path)
    ref = commit(at, spec())
    file = tmp_path / "epoch_0/batch_0/samples.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:-9] + b"\n" + b"".join(lines[2:]))
    with pytest.raises(DamagedBatch, match=r"batch_0/samples.jsonl, line 2: .* — condemn"):
        at.load(ref)


def test_a_whole_batch_that_the_journal_does_not_know_is_not_loaded_in_its_place(tmp_path: Path) -> None:
    at = writer(tmp_path)
    ref = commit(at, spec())
    with pytest.raises(DamagedBatch, match="journal"):
        at.load(replace(ref, samples_hash="blake3:other"))


@pytest.mark.parametrize("name", ["SUCCESS", "meta.json", "samples.jsonl"])
def test_a_batch_without_one_of_its_files_is_damaged(tmp_path: Path, name: str) -> None:
    at = writer(tmp_path)
    ref = commit(at, spec())
    (tmp_path / "epoch_0/batch_0" / name).unlink()
    with pytest.raises(DamagedBatch, match="batch_0"):
        at.load(ref)
    with pytest.raises(DamagedBatch, match="batch_0"):
        commit(at, spec())


def test_a_condemned_batch_lies_aside_and_can_be_made_again(tmp_path: Path) -> None:
    at = writer(tmp_path, attempt=2)
    ref = commit(at, spec())
    for place in (".condemned/epoch_0_batch_0.2", ".condemned/epoch_0_batch_0.2.1"):
        (tmp_path / "epoch_0/batch_0/samples.jsonl").write_bytes(b"damage")
        assert at.condemn(ref) == place
        assert (tmp_path / place / "samples.jsonl").read_bytes() == b"damage"
        assert list(at.scan()) == []
        assert commit(at, spec()) == ref
    assert at.condemn(ref) == ".condemned/epoch_0_batch_0.2.2"
    assert at.condemn(ref) == "epoch_0/batch_0", "twice is harmless"


# --- sweep ---------------------------------------------------------------------------------------


def test_sweep_removes_leftovers_of_dead_attempts_and_nothing_else(tmp_path: Path) -> None:
    ref = commit(writer(tmp_path, attempt=3), spec())
    leftovers = [f"rollout_20270115_080000_{attempt}_e0_b1_00000000" for attempt in (1, 3, 33)]
    for name in leftovers:
        (tmp_path / ".staging" / name).mkdir(parents=True)
        (tmp_path / ".staging" / name / "samples.jsonl").write_bytes(b"half")
    shutil.copytree(tmp_path / "epoch_0/batch_0", tmp_path / "epoch_0/batch_5")
    (tmp_path / "epoch_0/batch_5/SUCCESS").unlink()
    at = writer(tmp_path, attempt=3)
    assert at.sweep() == [leftovers[0], leftovers[2], ".condemned/epoch_0_batch_5.3"]
    assert os.listdir(tmp_path / ".staging") == [leftovers[1]]
    assert list(at.scan()) == [ref]
    assert commit(at, spec(5)).key.batch == 5
    assert at.sweep() == []


# --- build ---------------------------------------------------------------------------------------


def test_it_is_built_from_the_context(tmp_path: Path) -> None:
    context = BuildContext(run_id="run", branch=2, attempt=3)
    at = build_atomic(AtomicConfig(), context, LocalStorage(str(tmp_path)))
    assert isinstance(at, AtomicWriter)
    ref = commit(at, spec())
    assert (ref.branch, ref.attempt) == (2, 3)
