"""1.0 for a response that equals the answer, else 0.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import BuildContext, Prompt


@dataclass
class ExactMatchConfig:
    strip: bool = True  # white space around the response does not count
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class ExactMatch:
    config: ExactMatchConfig

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        pairs = zip(prompts, responses, strict=True)
        return [float(self._plain(prompt.answer) == self._plain(response)) for prompt, response in pairs]

    def _plain(self, text: str) -> str:
        text = text.strip() if self.config.strip else text
        return text.casefold() if self.config.ignore_case else text


def build(config: ExactMatchConfig, context: BuildContext) -> ExactMatch:
    return ExactMatch(config)
