"""Layouts of the samples of a step, and that a packed token sees just what it sees alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl_core.types import TrainBatch
from verl_core_engines.packing import Layout, lay_out, micro_batches, packs_of

PAD = 0
CPU = torch.device("cpu")


def batch_of(groups: list[tuple[int, list[int]]]) -> TrainBatch:
    """Groups of (prompt length, response lengths); every token id is different."""
    numbers = iter(range(1, 10_000))
    prompts, responses, group = [], [], []
    for g, (length, counts) in enumerate(groups):
        prompt = np.array([next(numbers) for _ in range(length)], np.int32)
        for count in counts:
            prompts.append(prompt)
            responses.append(np.array([next(numbers) for _ in range(count)], np.int32))
            group.append(g)
    size = len(group)
    return TrainBatch(
        1,
        tuple(prompts),
        tuple(responses),
        tuple(np.full(len(r), -float(i), np.float32) for i, r in enumerate(responses)),
        np.zeros(size),
        np.array(group, np.int64),
        np.zeros(size, np.int64),
        np.arange(size, dtype=np.float64),
    )


batches = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=5)), min_size=1, max_size=5
).map(batch_of)


@given(batches, st.integers(0, 6), st.integers(1, 30))
def test_packs_hold_every_sample_once_in_order_within_their_limits(
    batch: TrainBatch, max_samples: int, max_tokens: int
) -> None:
    packs = list(packs_of(batch, max_samples, max_tokens))
    assert [i for pack in packs for i in pack] == list(range(len(batch.groups)))
    for pack in packs:
        assert len({int(batch.groups[i]) for i in pack}) == 1
        assert max_samples == 0 or len(pack) <= max_samples
        tokens = len(batch.prompt_ids[pack[0]]) + sum(len(batch.response_ids[i]) for i in pack)
        assert len(pack) == 1 or tokens <= max_tokens


@given(batches, st.integers(0, 8))
def test_micro_batches_hold_whole_packs_in_order_within_the_limit(batch: TrainBatch, limit: int) -> None:
    packs = list(packs_of(batch, limit, 1000))
    parts = list(micro_batches(iter(packs), limit))
    assert [pack for part in parts for pack in part] == packs
    assert all(limit == 0 or sum(map(len, part)) <= limit for part in parts)


def test_samples_of_one_group_with_different_prompts_are_never_packed() -> None:
    batch = batch_of([(3, [2]), (3, [2])])
    batch.groups[:] = 0
    assert list(packs_of(batch, 0, 1000)) == [(0,), (1,)]


def seen_by(layout: Layout, row: int, column: int) -> list[tuple[int, int]]:
    """What a token looks at, as (token, position) in the order of the columns."""
    mask = layout.mask_4d(torch.float32)
    columns = (mask[min(row, len(mask) - 1), 0, column] == 0).nonzero()[:, 0].tolist()
    return [(int(layout.ids[row, c]), int(layout.positions[row, c])) for c in columns]


@given(batches, st.integers(1, 4))
def test_the_logits_of_a_token_come_from_the_token_before_it_which_sees_its_own_past(
    batch: TrainBatch, max_samples: int
) -> None:
    packs = list(packs_of(batch, max_samples, 1000))
    layout = lay_out(batch, packs, PAD, CPU)
    rows = [row for row, pack in enumerate(packs) for _ in pack]
    first = layout.ids.shape[1] - layout.keep
    for i, row in enumerate(rows):
        whole = [*batch.prompt_ids[i].tolist(), *batch.response_ids[i].tolist()]
        begin = len(batch.prompt_ids[i])
        for t, token in enumerate(batch.response_ids[i]):
            assert layout.targets[i, t] == token
            source_row, column = divmod(int(layout.sources[i, t]), layout.keep)
            assert source_row == row
            assert seen_by(layout, row, first + column) == [(x, p) for p, x in enumerate(whole[: begin + t])]
        count = len(batch.response_ids[i])
        assert layout.mask[i].tolist() == [1.0] * count + [0.0] * (layout.mask.shape[1] - count)
        assert layout.old_logp[i, :count].tolist() == [-float(i)] * count
    assert layout.advantages.tolist() == batch.advantages.tolist() if batch.advantages is not None else False


@given(batches)
def test_only_padding_itself_looks_at_padding(batch: TrainBatch) -> None:
    layout = lay_out(batch, list(packs_of(batch, 0, 1000)), PAD, CPU)
    mask = (layout.mask_4d(torch.float32)[:, 0] == 0).expand(len(layout.ids), -1, -1)
    for row, column in (layout.segments == -1).nonzero().tolist():
        assert mask[row, :, column].nonzero()[:, 0].tolist() == [column]
    assert mask.any(-1).all()  # a token that looked at nothing would be NaN


def test_rows_of_one_shape_share_one_mask() -> None:
    batch = batch_of([(3, [2, 4]), (3, [2, 4])])
    layout = lay_out(batch, list(packs_of(batch, 0, 1000)), PAD, CPU)
    assert layout.mask_4d(torch.float32).shape == (1, 1, 7, 7)
    assert layout.mask_2d().tolist() == [[1] * 7] * 2
