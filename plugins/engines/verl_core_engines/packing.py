"""How the samples of a step are laid out for the forward pass.

A pack is one row: a prompt, then the responses to it one behind the other. A mask lets each response see the prompt
and itself, and its positions go on from the prompt's, so that the prompt is computed once for its whole group and
every token sees just what it sees alone. Prompts are padded on the left: in all rows responses begin in one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from verl_core.types import TrainBatch

Pack = tuple[int, ...]  # samples of one prompt, as indices into the batch

_PADDING, _PROMPT = -1, 0  # segments; responses count from 1


def packs_of(batch: TrainBatch, max_samples: int, max_tokens: int) -> Iterator[Pack]:
    """Neighbouring samples of one prompt, at most ``max_samples`` (0: no limit) and, beyond one, ``max_tokens``."""
    pack: list[int] = []
    tokens = 0
    for i, response in enumerate(batch.response_ids):
        if pack and (
            len(pack) == max_samples
            or tokens + len(response) > max_tokens
            or batch.groups[i] != batch.groups[pack[0]]
            or not np.array_equal(batch.prompt_ids[i], batch.prompt_ids[pack[0]])
        ):
            yield tuple(pack)
            pack = []
        tokens = (tokens if pack else len(batch.prompt_ids[i])) + len(response)
        pack.append(i)
    if pack:
        yield tuple(pack)


def micro_batches(packs: Iterator[Pack], max_samples: int) -> Iterator[list[Pack]]:
    """Whole packs in order, at most ``max_samples`` samples together (0: no limit)."""
    rows: list[Pack] = []
    for pack in packs:
        if rows and max_samples and sum(map(len, rows)) + len(pack) > max_samples:
            yield rows
            rows = []
        rows.append(pack)
    if rows:
        yield rows


@dataclass(frozen=True, slots=True)
class Layout:
    """Tensors of one forward pass: R rows of width W, B samples of at most T response tokens."""

    ids: torch.Tensor  # [R, W]
    positions: torch.Tensor  # [R, W]
    segments: torch.Tensor  # [R, W]
    keep: int  # logits are needed for the last so many columns
    sources: torch.Tensor  # [B, T] where the logits of a response token are, in [R * keep]
    targets: torch.Tensor  # [B, T] the token
    old_logp: torch.Tensor  # [B, T]
    mask: torch.Tensor  # [B, T] 1.0 for tokens, 0.0 for padding
    advantages: torch.Tensor  # [B]

    def mask_2d(self) -> torch.Tensor:
        """For packs of one sample: 1 where there is a token."""
        return (self.segments != _PADDING).long()

    def mask_4d(self, dtype: torch.dtype) -> torch.Tensor:
        """``[R or 1, 1, W, W]``: 0 where a row's token may look, -inf elsewhere; nothing else sees padding."""
        segments = self.segments[:1] if bool((self.segments == self.segments[:1]).all()) else self.segments
        of_query, of_key = segments[:, :, None], segments[:, None, :]
        seen = ((of_key == _PROMPT) | ((of_key == of_query) & (of_key != _PADDING))).tril()
        seen |= torch.eye(segments.shape[1], dtype=torch.bool, device=segments.device)
        blank = torch.zeros(seen.shape, dtype=dtype, device=segments.device)
        return blank.masked_fill_(~seen, -torch.inf)[:, None]


def lay_out(batch: TrainBatch, packs: Sequence[Pack], pad_id: int, device: torch.device) -> Layout:
    """Build the tensors of one micro-batch; ``batch.advantages`` are set."""
    samples = [i for pack in packs for i in pack]
    longest = max(len(batch.response_ids[i]) for i in samples)
    start = max(len(batch.prompt_ids[pack[0]]) for pack in packs)  # column of the first response token
    fed = max(sum(max(0, len(batch.response_ids[i]) - 1) for i in pack) for pack in packs)  # a last token is not fed
    shape = (len(packs), start + fed)
    ids, positions = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, _PADDING, np.int64)
    sources, targets = np.zeros((len(samples), longest), np.int64), np.zeros((len(samples), longest), np.int64)
    old_logp, mask = np.zeros(sources.shape, np.float32), np.zeros(sources.shape, np.float32)
    sample = 0
    for row, pack in enumerate(packs):
        prompt = batch.prompt_ids[pack[0]]
        length, column = len(prompt), start
        ids[row, start - length : start] = prompt
        positions[row, start - length : start] = np.arange(length)
        segments[row, start - length : start] = _PROMPT
        for segment, i in enumerate(pack, 1):
            response = batch.response_ids[i]
            count, end = len(response), column + max(0, len(response) - 1)
            ids[row, column:end] = response[:-1]
            positions[row, column:end] = np.arange(length, length + end - column)
            segments[row, column:end] = segment
            first = row * (fed + 1)  # the prompt's last column, whose logits are for every first token
            sources[sample, :1] = first
            sources[sample, 1:count] = first + 1 + np.arange(column, end) - start
            targets[sample, :count], old_logp[sample, :count] = response, batch.logprobs[i]
            mask[sample, :count] = 1.0
            sample, column = sample + 1, end
    assert batch.advantages is not None

    def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Layout(
        tensor(ids),
        tensor(positions),
        tensor(segments),
        fed + 1,
        tensor(sources),
        tensor(targets),
        tensor(old_logp),
        tensor(mask),
        tensor(batch.advantages[samples].astype(np.float32)),
    )
