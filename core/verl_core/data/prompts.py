"""From rows to prompts: chat template, token ids, length limit. Pure in (data, config, tokenizer, seed)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

from ..config.schema import DataConfig
from ..draws import seed_of
from ..errors import DataError
from ..types import Prompt
from .fingerprint import Fingerprint, fingerprint
from .hashes import FileHashes
from .procedural import make_rows
from .source import Row, find_sources, read_rows
from .tokenizer import Tokenizer

Messages: TypeAlias = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of a split, ascending in ``row``, and the fingerprint of the data that they come from."""

    prompts: tuple[Prompt, ...]
    source: Fingerprint
    paths: tuple[Path, ...] = ()  # of the data files, in the order of the fingerprint's entries

    @property
    def fingerprint(self) -> str:
        """``sha256:…`` over all files."""
        return self.source.digest

    @property
    def files(self) -> tuple[tuple[str, str, int], ...]:
        """(name, ``sha256:…``, size in bytes) of each data file."""
        return tuple((entry.name, entry.sha256, entry.size) for entry in self.source.entries)


def load_prompts(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    split: Literal["train", "val"],
    seed: int,
    hashes: FileHashes | None = None,
) -> PromptSet:
    """Read (or make) a split and turn its rows into prompts. Raises DataError that names the row.

    A prompt longer than ``max_prompt_length`` tokens is an error or, with ``overlong_prompts: skip``, left out; rows
    keep their numbers either way. A made task has the seed as its content: ``val`` rows differ from ``train`` rows.
    """
    if config.task is not None:
        made_with = seed_of(seed, "task", split) >> 33  # 31 bits, what every generator takes
        rows, source = make_rows(config.task, config.task_options, config.task_size, made_with)
        paths: tuple[Path, ...] = ()
        prompt_key, answer_key = "prompt", "answer"
    else:
        found = find_sources(config.train_files if split == "train" else config.val_files)
        hashes, files = hashes or FileHashes(), [file for s in found for file in s.files]
        source, paths = fingerprint(files, hashes), tuple(path for _, path in files)
        rows = read_rows(found)
        hashes.check_unchanged(paths)
        prompt_key, answer_key = config.prompt_key, config.answer_key
    chat = config.chat_template == "auto" and tokenizer.has_chat_template()
    texts = [_text(row, row.column(prompt_key), config, tokenizer if chat else None) for row in rows]
    ids = tokenizer.encode_all(texts, special=not chat)
    prompts = [
        Prompt(number, text, _answer(row, answer_key), tuple(tokens), _extra(row, (prompt_key, answer_key)))
        for number, (row, text, tokens) in enumerate(zip(rows, texts, ids, strict=True))
        if _fits(row, len(tokens), config)
    ]
    if not prompts:
        raise DataError("no prompt is left: all are too long", remedy="raise data.max_prompt_length")
    return PromptSet(tuple(prompts), source, paths)


def _fits(row: Row, length: int, config: DataConfig) -> bool:
    if length == 0:
        raise DataError("the prompt is empty", where=row.where)
    if length > config.max_prompt_length and config.overlong_prompts != "skip":
        raise DataError(
            f"the prompt has {length} tokens, {config.max_prompt_length} are allowed",
            where=row.where,
            remedy="raise data.max_prompt_length, or set data.overlong_prompts to skip",
        )
    return length <= config.max_prompt_length


def _text(row: Row, value: object, config: DataConfig, chat: Tokenizer | None) -> str:
    """The prompt as the model sees it; ``chat`` is the tokenizer when its template is to be applied."""
    if chat is not None:
        try:
            return chat.chat(_messages(row, value, config)) or ""
        except DataError as error:
            raise DataError(error.what, where=row.where, remedy=error.remedy) from error
    if isinstance(value, str):
        return (f"{config.system_prompt}\n\n" if config.system_prompt else "") + value + config.prompt_suffix
    if isinstance(value, list):
        raise DataError(
            "chat messages need a chat template", where=row.where, remedy="use a tokenizer with one, or string prompts"
        )
    raise DataError(f"the prompt is neither text nor messages but {type(value).__name__}", where=row.where)


def _messages(row: Row, value: object, config: DataConfig) -> Messages:
    """The prompt as chat messages: system prompt in front unless the row has its own, suffix on the last user text."""
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else _checked(row, value)
    if config.system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": config.system_prompt})
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"] += config.prompt_suffix
            break
    return messages


def _checked(row: Row, value: object) -> Messages:
    messages: Messages = []
    for item in value if isinstance(value, list) else ():
        role, content = (item.get("role"), item.get("content")) if isinstance(item, Mapping) else (None, None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError("a chat message needs a role and a content, both text", where=row.where)
        messages.append({"role": role, "content": content})
    if not messages:
        raise DataError(f"the prompt is neither text nor messages but {value!r:.40}", where=row.where)
    return messages


def _answer(row: Row, key: str) -> str:
    """The answer as text; no answers at all when ``data.answer_key`` is empty."""
    if not key:
        return ""
    value = row.column(key)
    if value is None:
        raise DataError(f"column {key!r} is null", where=row.where, remedy="set data.answer_key to '' for no answers")
    return _as_text(value)


def _extra(row: Row, taken: Sequence[str]) -> dict[str, str]:
    return {key: _as_text(value) for key, value in row.values.items() if key not in taken}


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
