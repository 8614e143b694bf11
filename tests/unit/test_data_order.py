"""Prompt order: a pure function of (seed, epoch), every row once an epoch, whatever the number of workers."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from verl_core.data.order import epoch_batches, epoch_order

SEEDS = st.integers(0, 2**63 - 1)


def test_c09_every_prompt_comes_once_an_epoch_for_all_small_sizes_and_worker_counts() -> None:
    for size in range(1, 18):
        for per_batch in range(1, size + 3):
            batches = epoch_batches(epoch_order(3, 0, size), per_batch)
            assert len(batches) == -(-size // per_batch)
            for workers in range(1, 6):
                shares = [batches[worker::workers] for worker in range(workers)]
                served = sorted(chain.from_iterable(chain.from_iterable(shares)))
                assert served == list(range(size)), (size, per_batch, workers)


def test_c02_resuming_at_every_batch_of_three_epochs_gives_the_undisturbed_rest() -> None:
    def schedule(start: int) -> list[tuple[int, tuple[int, ...]]]:
        made = [(e, batch) for e in range(3) for batch in epoch_batches(epoch_order(7, e, 10), 4)]
        return made[start:]

    undisturbed = schedule(0)
    assert [sum(epoch == e for epoch, _ in undisturbed) for e in range(3)] == [3, 3, 3]
    for step in range(len(undisturbed) + 1):
        assert undisturbed[:step] + schedule(step) == undisturbed


@given(seed=SEEDS, epoch=st.integers(0, 50), size=st.integers(0, 300), per_batch=st.integers(1, 64))
def test_batches_cut_the_order_without_loss_and_only_the_last_is_ragged(
    seed: int, epoch: int, size: int, per_batch: int
) -> None:
    order = epoch_order(seed, epoch, size)
    batches = epoch_batches(order, per_batch)
    assert list(chain.from_iterable(batches)) == order.tolist()
    assert sorted(order.tolist()) == list(range(size))
    assert all(len(batch) == per_batch for batch in batches[:-1])


@given(seed=SEEDS, epoch=st.integers(0, 50))
def test_epochs_and_seeds_have_orders_of_their_own(seed: int, epoch: int) -> None:
    order = epoch_order(seed, epoch, 100).tolist()
    assert order == epoch_order(seed, epoch, 100).tolist()
    assert order != epoch_order(seed, epoch + 1, 100).tolist()
    assert order != epoch_order(seed + 1, epoch, 100).tolist()


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    assert np.array_equal(epoch_order(1, 4, 5, shuffle=False), [0, 1, 2, 3, 4])
