"""Scores of the ``reasoning-gym`` library for prompts that ``data.task: reasoning_gym:NAME`` made."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ..errors import DataError, PluginError
from ..types import BuildContext, Prompt

# Their scorers hand the response to ``eval`` or to sympy's parser, which evaluates it: they run what the model wrote.
RUNS_RESPONSES = frozenset({
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "number_sorting",
    "polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
})  # fmt: skip
# What scorers raise for a response that they cannot read.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, SyntaxError, TypeError, ValueError, RecursionError)
_INSTALL = "pip install 'verl-core[reasoning-gym]'"


@dataclass
class ReasoningGymConfig:
    tag: str = ""  # "answer": score what stands in the last <answer>…</answer>, nothing else
    run_responses: bool = False  # allow the tasks whose scorers evaluate the response as code


class Scorer(Protocol):
    def score_answer(self, answer: str | None, entry: dict[str, object]) -> float: ...


@dataclass(frozen=True, slots=True)
class ReasoningGym:
    config: ReasoningGymConfig

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """Raises DataError for prompts of another origin, PluginError for a task that would run responses."""
        return [self._one(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def _one(self, prompt: Prompt, response: str) -> float:
        extra = prompt.extra
        if not {"task", "task_options", "entry"} <= extra.keys():
            raise DataError(
                "not a reasoning_gym prompt", where=f"row {prompt.row}", remedy="set data.task to reasoning_gym:NAME"
            )
        name = extra["task"].partition(":")[2]
        if name in RUNS_RESPONSES and not self.config.run_responses:
            raise PluginError(
                "its scorer evaluates responses as code", where=extra["task"], remedy="set run_responses to allow it"
            )
        answer = self._answer(response)
        if answer is None:
            return 0.0
        scorer, entry = _scorer(name, extra["task_options"]), _entry(extra["entry"])
        try:
            return float(scorer.score_answer(answer, entry))
        except _UNREADABLE:
            return 0.0

    def _answer(self, response: str) -> str | None:
        if not self.config.tag:
            return response.strip()
        tag = re.escape(self.config.tag)
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", response, re.DOTALL)
        return str(found[-1]).strip() if found else None


@lru_cache(maxsize=16)
def _scorer(name: str, options: str) -> Scorer:
    try:
        from reasoning_gym import create_dataset
    except ImportError as error:
        raise PluginError("not installed", where="reasoning-gym", remedy=_INSTALL) from error
    scorer: Scorer = create_dataset(name, size=1, seed=0, **json.loads(options))
    return scorer


def _entry(text: str) -> dict[str, object]:
    """The library's record; fresh for each call, since a scorer may change it."""
    entry: dict[str, object] = json.loads(text, object_hook=_untagged)
    return entry


def _untagged(value: dict[str, object]) -> object:
    items = value.get("tuple")
    return tuple(items) if len(value) == 1 and isinstance(items, list) else value


def build(config: ReasoningGymConfig, context: BuildContext) -> ReasoningGym:
    return ReasoningGym(config)
