"""What every rollout writer and checkpointer must do: whole or absent, the same again, and nothing of another run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ...errors import ObjectMissing, RunMismatch, VerlError
from ...protocols import Checkpointer, RolloutWriter
from ...types import BatchKey, BatchSpec, CheckpointState, Sample, Slice, TensorChunk

OpenWriter = Callable[[str, int], RolloutWriter]
OpenCheckpointer = Callable[[str, int], Checkpointer]


def batch_of(batch: int, *, epoch: int = 0, version: int = 0) -> tuple[BatchSpec, list[Sample]]:
    """A batch of two prompts with two samples each: equal numbers, equal bytes."""
    spec = BatchSpec(BatchKey(epoch, batch), version, (4, 2))
    made = [
        Sample(
            row=row,
            index=index,
            seed=(1 << 63) + 10 * row + index,
            prompt=f"sort {row}\n",
            response=f"é{index}\u2028",
            prompt_ids=np.array([row, 1], np.int32),
            response_ids=np.array([index, -1, 2**31 - 1], np.int32),
            logprobs=np.array([-0.1, -1e-30, -2.5 * index], np.float32),
            finish="stop",
            reward=0.1 * row + index,
        )
        for row in spec.rows
        for index in range(2)
    ]
    return spec, made


def as_text(samples: list[Sample]) -> list[str]:
    """Everything that must come back, for comparing."""
    texts = [(s.row, s.index, s.seed, s.prompt, s.response, s.finish, s.reward) for s in samples]
    arrays = [(s.prompt_ids.tobytes(), s.response_ids.tobytes(), s.logprobs.tobytes()) for s in samples]
    return [f"{text} {array}" for text, array in zip(texts, arrays, strict=True)]


class RolloutWriterSuite:
    """Needs the fixture ``open_writer``: a function of run id and attempt that opens the same empty place each time."""

    @pytest.fixture
    def open_writer(self) -> OpenWriter:
        raise NotImplementedError("give a fixture `open_writer`")

    def test_what_was_committed_is_loaded_bit_for_bit(self, open_writer: OpenWriter) -> None:
        spec, made = batch_of(0)
        writer = open_writer("run", 1)
        ref = writer.commit(writer.stage(spec, made, worker="rollout-0", seed=0))
        assert (ref.key, ref.policy_version, ref.sample_count) == (spec.key, 0, 4)
        assert ref.prompt_rows == spec.rows
        assert as_text(open_writer("run", 2).load(ref)) == as_text(made)

    def test_staging_writes_nothing(self, open_writer: OpenWriter) -> None:
        spec, made = batch_of(0)
        open_writer("run", 1).stage(spec, made, worker="rollout-0", seed=0)
        assert list(open_writer("run", 1).scan()) == []

    def test_a_batch_is_committed_once_whoever_comes(self, open_writer: OpenWriter) -> None:
        """A worker that was thought dead, its replacement, and a later attempt bring the same batch."""
        spec, made = batch_of(0)
        refs = []
        for attempt, worker in ((1, "rollout-0"), (1, "rollout-1"), (2, "rollout-0")):
            writer = open_writer("run", attempt)
            refs.append(writer.commit(writer.stage(spec, made, worker=worker, seed=0)))
        assert refs == [refs[0]] * 3
        assert list(open_writer("run", 3).scan()) == refs[:1]

    def test_a_batch_of_another_run_or_schedule_is_not_adopted(self, open_writer: OpenWriter) -> None:
        spec, made = batch_of(0)
        writer = open_writer("run", 1)
        ref = writer.commit(writer.stage(spec, made, worker="rollout-0", seed=0))
        for run, version in (("other", 0), ("run", 1)):
            writer = open_writer(run, 1)
            with pytest.raises(RunMismatch):
                writer.commit(writer.stage(replace(spec, policy_version=version), made, worker="rollout-0", seed=0))
        assert as_text(open_writer("run", 1).load(ref)) == as_text(made)

    def test_samples_that_are_not_of_the_batch_are_refused(self, open_writer: OpenWriter) -> None:
        spec, made = batch_of(0)
        with pytest.raises(RunMismatch):
            open_writer("run", 1).stage(replace(spec, rows=(4, 3)), made, worker="rollout-0", seed=0)

    def test_the_scan_has_all_in_order_and_leaves_out_what_is_known(self, open_writer: OpenWriter) -> None:
        keys = [(1, 0), (0, 10), (0, 9), (0, 0)]
        writer = open_writer("run", 1)
        for epoch, batch in keys:
            writer.commit(writer.stage(*batch_of(batch, epoch=epoch), worker="rollout-0", seed=0))
        reader = open_writer("run", 2)
        assert [ref.key for ref in reader.scan()] == [BatchKey(*key) for key in sorted(keys)]
        assert [ref.key for ref in reader.scan(known={BatchKey(0, 9), BatchKey(1, 0)})] == [
            BatchKey(0, 0),
            BatchKey(0, 10),
        ]

    def test_a_ref_that_is_not_the_stored_batch_is_damage(self, open_writer: OpenWriter) -> None:
        spec, made = batch_of(0)
        writer = open_writer("run", 1)
        ref = writer.commit(writer.stage(spec, made, worker="rollout-0", seed=0))
        for wrong in (replace(ref, samples_hash="blake3:" + "0" * 64), replace(ref, key=BatchKey(0, 7))):
            with pytest.raises(VerlError):
                writer.load(wrong)

    def test_sweeping_leaves_what_is_committed(self, open_writer: OpenWriter) -> None:
        writer = open_writer("run", 1)
        ref = writer.commit(writer.stage(*batch_of(0), worker="rollout-0", seed=0))
        for attempt in (1, 2):
            open_writer("run", attempt).sweep()
        assert list(open_writer("run", 2).scan()) == [ref]


def state_of(step: int, attempt: int = 1) -> CheckpointState:
    """A state of one matrix on two ranks, and a scalar."""
    whole = np.arange(24, dtype=np.float32).reshape(6, 4) + step
    halves = [
        [TensorChunk("w", "F32", (6, 4), (3 * rank, 0), (3, 4), whole[3 * rank : 3 * rank + 3].tobytes())]
        for rank in range(2)
    ]
    scalar = TensorChunk("step", "I64", (), (), (), np.int64(step).tobytes())
    return CheckpointState(
        step=step,
        branch=0,
        attempt=attempt,
        tensors={"actor": halves, "optimizer": [[scalar], []]},
        files={"config.yaml": b"seed: 0\n", "actor/config.json": b"{}", "rng_state.msgpack": b"rng"},
        facts={"policy_digest": f"sums:{step}", "reward_mean": 0.5},
    )


class CheckpointerSuite:
    """Needs the fixture ``open_checkpointer``: a function of run id and attempt, on the same empty place each time."""

    @pytest.fixture
    def open_checkpointer(self) -> OpenCheckpointer:
        raise NotImplementedError("give a fixture `open_checkpointer`")

    def test_what_was_saved_is_read_in_any_pieces(self, open_checkpointer: OpenCheckpointer) -> None:
        ref = open_checkpointer("run", 1).save(state_of(10))
        assert (ref.step, ref.branch, ref.attempt) == (10, 0, 1)
        reader = open_checkpointer("run", 2).open(ref)
        whole = np.arange(24, dtype=np.float32).reshape(6, 4) + 10
        assert reader.step == 10
        for rows, columns in ((slice(0, 6), slice(0, 4)), (slice(1, 5), slice(1, 3)), (slice(3, 6), slice(0, 4))):
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            piece = reader.read("actor", Slice("w", (rows.start, columns.start), shape))
            assert bytes(piece.data) == whole[rows, columns].tobytes()
        assert np.frombuffer(reader.read("optimizer", Slice("step", (), ())).data, np.int64) == 10
        assert reader.file("config.yaml") == b"seed: 0\n"

    def test_the_list_has_committed_ones_newest_first(self, open_checkpointer: OpenCheckpointer) -> None:
        assert open_checkpointer("run", 1).list() == []
        refs = {step: open_checkpointer("run", 1).save(state_of(step)) for step in (5, 1_000_000, 10)}
        found = open_checkpointer("run", 2).list()
        assert found == [refs[1_000_000], refs[10], refs[5]]
        for ref in found:
            open_checkpointer("run", 2).verify(ref)

    def test_deleting_is_whole_and_harmless_twice(self, open_checkpointer: OpenCheckpointer) -> None:
        keeper = open_checkpointer("run", 1)
        old, new = keeper.save(state_of(5)), keeper.save(state_of(10))
        keeper.delete(old)
        keeper.delete(old)
        assert keeper.list() == [new]
        with pytest.raises((VerlError, ObjectMissing)):
            keeper.open(old)
        keeper.verify(new)

    def test_a_condemned_one_is_never_listed_and_its_step_can_be_saved_anew(
        self, open_checkpointer: OpenCheckpointer
    ) -> None:
        keeper = open_checkpointer("run", 1)
        first = keeper.save(state_of(10))
        assert keeper.condemn(first)
        assert keeper.list() == []
        again = open_checkpointer("run", 2).save(state_of(10, attempt=2))
        assert open_checkpointer("run", 2).list() == [again]
        assert again.attempt == 2
        open_checkpointer("run", 2).verify(again)

    def test_what_another_storage_holds_is_adopted_byte_for_byte(self, open_checkpointer: OpenCheckpointer) -> None:
        keeper = open_checkpointer("run", 1)
        ref = keeper.save(state_of(10))
        summary, files = keeper.contents(ref)
        held = [(path, list(blocks)) for path, blocks in files]
        keeper.condemn(ref)
        for _ in range(2):
            open_checkpointer("run", 2).adopt(ref, (summary, ((path, iter(blocks)) for path, blocks in held)))
        assert keeper.list() == [ref]
        keeper.verify(ref)
        short = [(path, iter(blocks if path != held[0][0] else ())) for path, blocks in held]
        keeper.condemn(ref)
        with pytest.raises(VerlError):
            open_checkpointer("run", 3).adopt(ref, (summary, iter(short)))
        assert keeper.list() == []

    def test_sweeping_leaves_what_is_committed(self, open_checkpointer: OpenCheckpointer) -> None:
        ref = open_checkpointer("run", 1).save(state_of(10))
        for attempt in (1, 2):
            open_checkpointer("run", attempt).sweep()
        keeper = open_checkpointer("run", 2)
        assert keeper.list() == [ref]
        keeper.verify(ref)
