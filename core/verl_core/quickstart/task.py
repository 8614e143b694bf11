"""The task of the quickstart: write the letters of a word in alphabetical order (``qwert>`` → ``eqrtw``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..draws import seed_of, uniforms
from .folders import make_file

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def draw_words(seed: int, start: int, count: int, letters: int) -> npt.NDArray[np.int64]:
    """Words ``start`` … of a stream that never ends, as alphabet positions ``[count, letters]``."""
    flat = uniforms(np.array([seed], np.uint64), start * letters, count * letters)[0]
    words: npt.NDArray[np.int64] = (flat * len(ALPHABET)).astype(np.int64).reshape(count, letters)
    return words


def spell(word: npt.NDArray[np.int64]) -> str:
    return "".join(ALPHABET[i] for i in word)


def write_sort_task(folder: Path, seed: int, size: int = 4096, letters: int = 5) -> Path:
    """Write ``sort.jsonl`` with keys ``prompt`` and ``answer``, whole or not at all; an existing one is left."""

    def content() -> bytes:
        words = draw_words(seed_of(seed, "sort task"), 0, size, letters)
        rows = [{"prompt": f"{spell(word)}>", "answer": spell(np.sort(word))} for word in words]
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    return make_file(folder / "sort.jsonl", content)
