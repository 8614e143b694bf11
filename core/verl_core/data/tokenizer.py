"""Text to token ids and back. Only fast tokenizers of allowed classes, only local files, never code from a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3
from jinja2 import TemplateError

from ..config.model_folder import TOKENIZER_CLASSES, check_model_folder
from ..errors import DataError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
_SHAPING = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")  # what decides about token ids
_SLOW = "save it with a fast class of the Llama, Qwen, Gemma or GPT families, or set model.tokenizer_classes"
# Any fixed day, as a macro that hides the library's clock: prompts must not change from day to day.
_FIXED_DATE = (
    "{%- macro strftime_now(format) -%}{{ format|replace('%Y', '2024')|replace('%m', '07')|replace('%d', '26')"
    "|replace('%b', 'Jul')|replace('%B', 'July') }}{%- endmacro -%}"
)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A loaded tokenizer and the facts about it that a run needs."""

    folder: Path
    pad_id: int
    eos_ids: tuple[int, ...]
    digest: str  # "blake3:…" of the files that decide about token ids
    _inner: PreTrainedTokenizerFast

    def encode(self, text: str) -> list[int]:
        """Token ids; a BOS in front exactly where the tokenizer adds one by default."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Many at once, much faster. ``special`` False for rendered chats: their template wrote the BOS already."""
        found = self._inner.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._inner.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def has_chat_template(self) -> bool:
        return self._inner.chat_template is not None

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str | None:
        """The messages as the model sees them, its turn opened; None when there is no chat template.

        Pure: a template that asks for the date gets a fixed one. Raises DataError when the template refuses.
        """
        if not self.has_chat_template():
            return None
        template = str(self._inner.get_chat_template())
        if "strftime_now" in template:
            template = _FIXED_DATE + template
        chat = [dict(message) for message in messages]
        try:
            text = self._inner.apply_chat_template(
                chat, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise DataError(f"the chat template refuses: {_first_line(error)}") from error
        return str(text)

    def files(self) -> dict[str, bytes]:
        """The small files of the folder, to lie beside saved weights."""
        return _read(self.folder, _SMALL_FILES)


def load_tokenizer(path: str, extra_classes: Sequence[str] = ()) -> Tokenizer:
    """Load from a model folder. Raises ModelError: files missing or malformed, class not allowed, code of its own."""
    for finding in check_model_folder(path, allow_pickle=True, extra_tokenizer_classes=extra_classes):
        raise finding  # weights are another's concern: none are loaded here
    from transformers import AutoTokenizer

    try:
        inner = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"tokenizer cannot be loaded: {_first_line(error)}", where=path) from error
    name = type(inner).__name__  # without tokenizer_class in its config, the model's type decides
    if not inner.is_fast or (name not in TOKENIZER_CLASSES and name not in extra_classes):
        raise ModelError(f"tokenizer class {name!r} is slow or not allowed", where=path, remedy=_SLOW)
    files = _read(Path(path), (*_SHAPING, "generation_config.json"))
    eos_ids = _eos_ids(inner.eos_token_id, files.pop("generation_config.json", b"{}"), path)
    pad_id = inner.pad_token_id if inner.pad_token_id is not None else next(iter(eos_ids), 0)
    shaping = b"".join(f"{name} {len(data)}\n".encode() + data for name, data in files.items())
    return Tokenizer(Path(path), pad_id, eos_ids, f"blake3:{blake3(shaping).hexdigest()}", inner)


def _eos_ids(eos_id: int | None, generation_config: bytes, path: str) -> tuple[int, ...]:
    try:
        listed = json.loads(generation_config).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ModelError("generation_config.json is malformed", where=path, remedy="export the model again") from error
    more = listed if isinstance(listed, list) else [listed]
    return tuple(dict.fromkeys(int(i) for i in [eos_id, *more] if i is not None))


def _read(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    except OSError as error:
        raise ModelError(error.strerror or str(error), where=str(folder)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
