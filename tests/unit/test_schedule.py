"""The schedule: every prompt once an epoch, for all sizes, whatever step a run starts from (C02, C09)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from verl_core.state.schedule import Schedule


def make(size: int, per_batch: int, batches: int, seed: int = 0) -> Schedule:
    return Schedule(seed, tuple(range(100, 100 + size)), per_batch, per_batch * batches, True, 10_000)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3))
def test_c09_ragged_epochs_consume_every_prompt_once(size: int, per_batch: int, batches: int, seed: int) -> None:
    schedule = make(size, per_batch, batches, seed)
    for epoch in range(3):
        steps = range(epoch * schedule.steps_per_epoch + 1, (epoch + 1) * schedule.steps_per_epoch + 1)
        rows = [row for step in steps for key in schedule.keys(step) for row in schedule.spec(key).rows]
        assert sorted(rows) == list(schedule.rows)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_c02_a_start_at_any_step_sees_the_rest_of_the_same_order(size: int, per_batch: int, batches: int) -> None:
    schedule = make(size, per_batch, batches)
    last = 3 * schedule.steps_per_epoch
    whole = [schedule.spec(key) for step in range(1, last + 1) for key in schedule.keys(step)]
    for start in range(1, last + 1):
        again = make(size, per_batch, batches)
        rest = [again.spec(key) for step in range(start, last + 1) for key in again.keys(step)]
        assert rest == whole[len(whole) - len(rest) :]
        assert all(schedule.keys(step) for step in range(start, last + 1)), "no empty step"


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_step_and_batch_name_each_other_and_the_version_is_the_step_before(size: int, per: int, batches: int) -> None:
    schedule = make(size, per, batches)
    consumed = 0
    for step in range(1, 2 * schedule.steps_per_epoch + 1):
        for key in schedule.keys(step):
            assert schedule.step_of(key) == step
            assert schedule.spec(key).policy_version == step - 1
            consumed += len(schedule.spec(key).rows)
        assert schedule.prompts_through(step) == consumed


def test_epochs_differ_in_order_and_unshuffled_ones_do_not() -> None:
    schedule = make(40, 40, 1)
    first, second = (schedule.spec(schedule.keys(step)[0]).rows for step in (1, 2))
    assert first != second
    plain = Schedule(0, schedule.rows, 40, 40, False, 10)
    assert plain.spec(plain.keys(2)[0]).rows == schedule.rows
