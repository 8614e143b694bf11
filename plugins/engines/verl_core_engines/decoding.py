"""Rows of one forward batch under way: prompts computed once, keys and values in memory set aside once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from .models import Model


class Decoding:
    """Prompts ``[P]``, each ``counts[p]`` times, are N rows that grow by at most ``room`` tokens.

    ``logits`` ``[N, V]`` are those of the next token.
    """

    logits: torch.Tensor

    def __init__(
        self, model: Model, prompts: Sequence[Sequence[int]], counts: Sequence[int], room: int, pad_id: int
    ) -> None:
        self._model, self._cache = model, DynamicCache(config=model.module.config)
        for i, layer in enumerate(self._cache.layers):
            if type(layer) is DynamicLayer:  # layers with a window of their own stay as they are
                self._cache.layers[i] = _ReservedLayer(room)
        device = model.module.device
        self._width = max(map(len, prompts))
        ids = np.full((len(prompts), self._width), pad_id, np.int64)
        mask = np.zeros((len(prompts), self._width + room), np.int64)
        for i, prompt in enumerate(prompts):  # padded on the left: the last columns line up
            ids[i, self._width - len(prompt) :] = prompt
            mask[i, self._width - len(prompt) :] = 1
        positions = torch.from_numpy((mask[:, : self._width].cumsum(1) - 1).clip(0)).to(device)
        self._mask = None if mask.all() else torch.from_numpy(mask).to(device)
        self._position = positions[:, -1:]
        self._forward(torch.from_numpy(ids).to(device), positions)
        if self._mask is not None and model.takes_4d_mask:  # else transformers makes it anew at every token
            hidden = torch.zeros(self._mask.shape, dtype=self.logits.dtype, device=device)
            self._mask = hidden.masked_fill_(self._mask == 0, -torch.inf)[:, None, None]
        self.keep(torch.from_numpy(np.repeat(np.arange(len(prompts)), counts)).to(device))

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with ``rows`` only, each as often as it is named."""
        self._cache.batch_select_indices(rows)
        self._position, self.logits = self._position[rows], self.logits[rows]
        self._mask = None if self._mask is None else self._mask[rows]

    def step(self, tokens: torch.Tensor) -> None:
        """Append one token ``[N]`` to each row."""
        self._width += 1
        self._position = self._position + 1
        self._forward(tokens[:, None], self._position)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        cache: dict[str, Any] = {self._model.cache_argument: self._cache}
        self.logits = self._model.module(
            input_ids=ids,
            attention_mask=None if self._mask is None else self._mask[..., : self._width],
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **cache,
        ).logits[:, -1]


class _ReservedLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer that writes into reserved memory instead of copying itself, one longer, at every token."""

    keys: torch.Tensor  # views of the memory, as far as it is filled
    values: torch.Tensor

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._reserved: tuple[torch.Tensor, torch.Tensor] | None = None

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        used = self.keys.shape[-2]
        length = used + self._room if self._reserved is None else self._reserved[0].shape[-2]
        self._reserved = (_moved(self.keys, indices, length), _moved(self.values, indices, length))
        self.keys, self.values = (memory[:, :, :used] for memory in self._reserved)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._reserved is None:
            return super().update(key_states, value_states)
        used, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        for memory, states in zip(self._reserved, (key_states, value_states), strict=True):
            memory[:, :, used:end] = states
        self.keys, self.values = (memory[:, :, :end] for memory in self._reserved)
        return self.keys, self.values


def _moved(tensor: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
    """``[P, heads, used, D]`` → memory ``[N, heads, length, D]`` that begins with the named rows."""
    memory = tensor.new_empty(len(rows), tensor.shape[1], length, tensor.shape[3])
    memory[:, :, : tensor.shape[2]] = tensor[rows]
    return memory
