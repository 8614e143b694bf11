"""Grade-school maths (Cobbe et al., "Training verifiers to solve math word problems", 2021): is the number right?

The answer column holds a plain number, or a worked solution that ends in ``#### number``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from ..errors import DataError
from ..types import BuildContext, Prompt

_NUMBER = r"(?:(?<!\d)-)?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"  # never ends in a dot: that one ends the sentence
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)


@dataclass
class Gsm8kConfig:
    flexible: bool = False  # without ``####``, the last number of the response counts
    format_reward: float = 0.0  # for a wrong number behind ``####``


@dataclass(frozen=True, slots=True)
class Gsm8k:
    config: Gsm8kConfig

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """Raises DataError for an answer without a number."""
        return [self._one(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]

    def _one(self, prompt: Prompt, response: str) -> float:
        wanted = _last(_MARKED, prompt.answer)
        wanted = _last(_ANY, prompt.answer) if wanted is None else wanted
        if wanted is None:
            raise DataError("the answer holds no number", where=f"row {prompt.row}", remedy="check data.answer_key")
        marked = _last(_MARKED, response)
        found = _last(_ANY, response) if marked is None and self.config.flexible else marked
        if found == wanted:
            return 1.0
        return 0.0 if marked is None else self.config.format_reward


def _last(pattern: re.Pattern[str], text: str) -> Decimal | None:
    """The last match as an exact number, without its commas and dollar sign."""
    found = pattern.findall(text)
    return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None


def build(config: Gsm8kConfig, context: BuildContext) -> Gsm8k:
    return Gsm8k(config)
