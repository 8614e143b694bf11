"""Rollout engine ``hf``: batched generation with the modules of transformers, unchanged.

A prompt is computed once; its keys and values are then repeated for the samples of its group. Rows that have ended
drop out when half of a batch has: which rows are computed together is a function of the batch and its seeds alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from verl_core.draws import uniforms
from verl_core.errors import ConfigError, WorkerError
from verl_core.hookspecs import Register, hookimpl
from verl_core.protocols import Reward, RolloutEngine
from verl_core.types import BuildContext, Completion, GenerateRequest, Sampling

from .classifier import ClassifierConfig
from .classifier import build as build_classifier
from .decoding import Decoding
from .models import load_model
from .sampling import draw
from .torch_setup import prepare

_AHEAD = 64  # positions for which random numbers are made at once


@dataclass
class HfConfig:
    """Options of the engine."""

    attn_implementation: str = "sdpa"  # as transformers names it


class HfEngine:
    """See ``protocols.RolloutEngine``. Log-probabilities are those of ``sampling.draw``."""

    def __init__(self, config: HfConfig, context: BuildContext) -> None:
        self._device = prepare(context)
        self._model = load_model(context, self._device, config.attn_implementation)
        self._pad_id, self._where = context.pad_id, f"rollout engine hf, {context.model_path}"
        self._eos = torch.tensor(context.eos_ids, dtype=torch.long, device=self._device)
        self._version = -1

    def version(self) -> int:
        return self._version

    def close(self) -> None:
        """Nothing to release: the memory goes with the object."""

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new weights in, cast to the engine's dtype. Tied tensors may come under one of their names or under all.

        Raises WorkerError for a name or a shape that is not the model's, and for names that did not come.
        """
        self._version = -1
        tensors, aliases = self._model.tensors, self._model.aliases
        missing = set(tensors)
        with torch.no_grad():
            for name, value in weights:
                own = tensors.get(aliases.get(name, name))
                if own is None or own.shape != value.shape:
                    raise self._misfit(f"{name} {tuple(value.shape)} is not a tensor of this model")
                own.copy_(value)
                missing.discard(aliases.get(name, name))
        if missing:
            raise self._misfit(f"{len(missing)} tensors did not come, among them {min(missing)}")
        self._version = version

    def generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        """Raises WorkerError without weights or when logits are not finite, ConfigError past the model's positions."""
        if self._version < 0:
            raise WorkerError("no policy is loaded", where=self._where, remedy="call load_weights first")
        longest = max((len(r.prompt_ids) for r in requests), default=0) + sampling.max_new_tokens
        if 0 < self._model.max_positions < longest:
            what = f"prompt and response take {longest} positions, the model has {self._model.max_positions}"
            raise ConfigError(what, where=self._where, remedy="lower data.max_response_length or max_prompt_length")
        found: list[list[Completion]] = []
        with torch.inference_mode():
            for part in _forward_batches(requests, sampling.max_num_seqs):
                found += self._generate(part, sampling)
        return found

    def _generate(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> list[list[Completion]]:
        counts = [len(r.seeds) for r in requests]
        seeds = np.array([s for r in requests for s in r.seeds], np.uint64)
        decoding = Decoding(
            self._model, [r.prompt_ids for r in requests], counts, sampling.max_new_tokens, self._pad_id
        )
        tokens = torch.zeros(len(seeds), sampling.max_new_tokens, dtype=torch.long, device=self._device)
        logprobs = torch.zeros(tokens.shape, device=self._device)
        live = torch.arange(len(seeds), device=self._device)  # the sample of each row
        ended = torch.zeros(len(seeds), dtype=torch.bool, device=self._device)
        for t, numbers in enumerate(_numbers(seeds, sampling.max_new_tokens)):
            token, logprob = draw(decoding.logits, numbers.to(self._device)[live], sampling)
            tokens[live, t], logprobs[live, t] = token, logprob
            ended |= torch.isin(token, self._eos)
            going = len(live) - int(ended.sum())
            if going == 0 or t + 1 == sampling.max_new_tokens:
                break
            if going <= len(live) // 2:
                rows = (~ended).nonzero()[:, 0]
                live, ended, token = live[rows], ended[rows], token[rows]
                decoding.keep(rows)
            decoding.step(token)
        found = iter(self._completions(tokens.cpu().numpy(), logprobs.cpu().numpy()))
        return [list(itertools.islice(found, n)) for n in counts]

    def _completions(self, tokens: npt.NDArray[np.int64], logprobs: npt.NDArray[np.float32]) -> list[Completion]:
        """Each row up to its first end-of-sequence token; what was computed behind it is dropped."""
        stops = np.isin(tokens, self._eos.cpu().numpy())
        stopped = np.any(stops, 1, keepdims=True)[:, 0]
        lengths = np.where(stopped, stops.argmax(1) + 1, tokens.shape[1])
        if np.isnan(logprobs[np.arange(tokens.shape[1]) < lengths[:, None]]).any():
            raise WorkerError("logits are not numbers", where=f"{self._where}, policy {self._version}")
        ids = tokens.astype(np.int32)
        return [
            Completion(ids[i, :n].copy(), logprobs[i, :n].copy(), "stop" if stopped[i] else "length")
            for i, n in enumerate(lengths.tolist())
        ]

    def _misfit(self, what: str) -> WorkerError:
        return WorkerError(what, where=self._where, remedy="train and roll out with one model folder")


def _numbers(seeds: npt.NDArray[np.uint64], count: int) -> Iterator[torch.Tensor]:
    """For each of ``count`` positions the uniform numbers ``[N]`` of all samples."""
    for begin in range(0, count, _AHEAD):
        yield from torch.from_numpy(uniforms(seeds, begin, min(_AHEAD, count - begin)).T.copy())


def _forward_batches(requests: Sequence[GenerateRequest], limit: int) -> Iterator[Sequence[GenerateRequest]]:
    """Whole prompts in order, at most ``limit`` sequences (0: no limit) unless one prompt alone has more."""
    begin, size = 0, 0
    for i, request in enumerate(requests):
        if limit and size and size + len(request.seeds) > limit:
            yield requests[begin:i]
            begin, size = i, 0
        size += len(request.seeds)
    if size:
        yield requests[begin:]


def build(config: HfConfig, context: BuildContext) -> HfEngine:
    return HfEngine(config, context)


@hookimpl
def register_rollout_engines(register: Register[RolloutEngine]) -> None:
    register("hf", HfConfig, build)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("sequence_classifier", ClassifierConfig, build_classifier)
