"""The bytes of a batch: ``samples.jsonl`` holds what was generated and nothing else, ``meta.json`` what is known of it.

``samples.jsonl`` is a pure function of the batch: one line a sample, then a line with count and hash. Token ids and
log-probabilities are base64 of little-endian int32 and float32, so that reading back is exact.
"""

from __future__ import annotations

import math
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from ..committed import content_hash, seal, unseal
from ..errors import DamagedBatch, DataError
from ..types import BatchKey, BatchSpec, Floats, Ints, Sample

FORMAT = 1
_LINE = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last line of ``samples.jsonl``."""

    key: BatchKey
    policy_version: int
    count: int
    hash: str  # of all bytes before the line


@dataclass(frozen=True, slots=True)
class BatchMeta:
    """``meta.json``: who generated a batch, when, and what its files must be."""

    run_id: str
    branch: int
    attempt: int
    epoch: int
    batch: int
    policy_version: int
    timestamp: float  # seconds since the epoch
    worker_id: str
    seed: int  # of the run
    token_count: int  # response tokens
    sample_count: int
    reward_mean: float | str  # as text where JSON has no number for it
    prompt_rows: list[int]
    samples_hash: str
    sizes: dict[str, int]  # file → bytes
    complete: bool = True
    format: int = FORMAT


class UnknownFormat(ValueError):
    """A record as another version wrote it."""


def encode(spec: BatchSpec, samples: Sequence[Sample]) -> bytes:
    """``samples.jsonl`` of a batch. Raises ``DataError`` for text that is not valid Unicode."""
    body = b"".join(_line(sample, number) for number, sample in enumerate(samples, 1))
    return body + _last_line(Trailer(spec.key, spec.policy_version, len(samples), content_hash(body)))


def decode(data: bytes) -> tuple[Trailer, list[Sample]]:
    """The inverse of ``encode``. Raises ``DamagedBatch`` with the number of the first line that is wrong."""
    body, newline, last = data.removesuffix(b"\n").rpartition(b"\n")
    lines = body.split(b"\n") if body else []
    samples = [_parsed(line, number_of_line) for number_of_line, line in enumerate(lines, 1)]
    where = f"line {len(lines) + 1}"
    try:
        trailer = _trailer(orjson.loads(last))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedBatch("the last line is missing or cut short", where=where) from error
    if (trailer.count, trailer.hash) != (len(samples), content_hash(body + newline)):
        raise DamagedBatch("the lines before do not match its count and hash", where=where)
    if _last_line(trailer) != data[len(body) + len(newline) :]:
        raise DamagedBatch("the last line is not as it was written", where=where)
    return trailer, samples


def encode_meta(meta: BatchMeta) -> bytes:
    return seal({name: getattr(meta, name) for name in BatchMeta.__slots__})


def decode_meta(data: bytes) -> BatchMeta:
    """Raises ``ValueError`` when a byte is wrong, ``UnknownFormat`` when it is whole, but not ours to read."""
    fields = unseal(data)
    if fields.get("format") != FORMAT:
        raise UnknownFormat(f"format {fields.get('format')} is not known here")
    try:
        return BatchMeta(**fields)
    except TypeError as error:
        raise ValueError("its fields are not those of a batch") from error


def number(value: float) -> float | str:
    """A float as JSON can hold it exactly: NaN and infinities as text. ``float`` is the inverse."""
    plain = float(value)
    return plain if math.isfinite(plain) else str(plain)


def _line(sample: Sample, number_of_line: int) -> bytes:
    fields = {
        "row": sample.row,
        "index": sample.index,
        "seed": sample.seed,
        "prompt": sample.prompt,
        "response": sample.response,
        "reward": number(sample.reward),
        "finish": sample.finish,
        "prompt_ids": _packed(sample.prompt_ids, "<i4"),
        "response_ids": _packed(sample.response_ids, "<i4"),
        "logprobs": _packed(sample.logprobs, "<f4"),
    }
    try:
        return orjson.dumps(fields, option=_LINE)
    except orjson.JSONEncodeError as error:
        raise DataError(f"the sample cannot be stored: {error}", where=f"line {number_of_line}") from error


def _last_line(trailer: Trailer) -> bytes:
    fields = {
        "epoch": trailer.key.epoch,
        "batch": trailer.key.batch,
        "policy_version": trailer.policy_version,
        "count": trailer.count,
        "hash": trailer.hash,
    }
    return orjson.dumps(fields, option=_LINE)


def _trailer(fields: Mapping[str, Any]) -> Trailer:
    key = BatchKey(fields["epoch"], fields["batch"])
    return Trailer(key, fields["policy_version"], fields["count"], fields["hash"])


def _parsed(line: bytes, number_of_line: int) -> Sample:
    try:
        return _sample(orjson.loads(line))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedBatch("this is not a sample", where=f"line {number_of_line}") from error


def _sample(fields: Mapping[str, Any]) -> Sample:
    return Sample(
        row=fields["row"],
        index=fields["index"],
        seed=fields["seed"],
        prompt=fields["prompt"],
        response=fields["response"],
        prompt_ids=_ints(fields["prompt_ids"]),
        response_ids=_ints(fields["response_ids"]),
        logprobs=_floats(fields["logprobs"]),
        finish=fields["finish"],
        reward=float(fields["reward"]),
    )


def _packed(values: Ints | Floats, dtype: str) -> str:
    return b2a_base64(np.asarray(values, dtype).tobytes(), newline=False).decode()


def _ints(text: str) -> Ints:
    return np.frombuffer(bytearray(a2b_base64(text, strict_mode=True)), "<i4")


def _floats(text: str) -> Floats:
    return np.frombuffer(bytearray(a2b_base64(text, strict_mode=True)), "<f4")
