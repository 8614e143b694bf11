"""Reward ``sequence_classifier``: the one output of a transformers sequence classifier on prompt and response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForSequenceClassification
from verl_core.data.tokenizer import load_tokenizer
from verl_core.errors import ConfigError, ModelError
from verl_core.rewards.models import RewardModelOptions
from verl_core.types import BuildContext, Prompt

from .models import loaded, plain_config
from .torch_setup import prepare


@dataclass
class ClassifierConfig(RewardModelOptions):
    """Options of the reward."""

    device: str = "cpu"  # cpu | cuda
    dtype: str = "float32"  # float32 | bfloat16


class SequenceClassifier:
    """See ``protocols.Reward``. Each text is a forward pass of its own, without padding: a score has the same bits in
    every batch. Equal texts are computed once."""

    def __init__(self, config: ClassifierConfig, context: BuildContext) -> None:
        """Raises ModelError for a folder that is no whole classifier with one output."""
        context = replace(context, device=config.device, dtype=config.dtype, allow_pickle=False)
        self._path, self._device = config.path, prepare(context)
        self._tokenizer = load_tokenizer(config.path, context.tokenizer_classes)
        facts = plain_config(config.path)
        if facts.num_labels != 1:
            what = f"the classifier has {facts.num_labels} outputs, not one"
            raise ModelError(what, where=config.path, remedy="give a reward model: num_labels is 1 in its config.json")
        self._model = loaded(AutoModelForSequenceClassification, facts, config.path, context, "sdpa").to(self._device)
        self._most = int(facts.to_dict().get("max_position_embeddings") or 0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[float]:
        """Raises ConfigError for a text of more tokens than the model has positions."""
        texts = [prompt.text + response for prompt, response in zip(prompts, responses, strict=True)]
        distinct = list(dict.fromkeys(texts))
        with torch.inference_mode():
            found = dict(zip(distinct, map(self._one, self._tokenizer.encode_all(distinct)), strict=True))
        return [found[text] for text in texts]

    def _one(self, ids: list[int]) -> float:
        if 0 < self._most < len(ids):
            what = f"prompt and response take {len(ids)} positions, the reward model has {self._most}"
            remedy = "lower data.max_response_length or max_prompt_length"
            raise ConfigError(what, where=self._path, remedy=remedy)
        tokens = torch.tensor([ids or [self._tokenizer.pad_id]], device=self._device)
        logits = self._model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        return float(logits[0, 0])


def build(config: ClassifierConfig, context: BuildContext) -> SequenceClassifier:
    return SequenceClassifier(config, context)
