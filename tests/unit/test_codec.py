"""``samples.jsonl`` and ``meta.json``: exact there and back, equal for equal batches, and no damage goes unseen."""

from __future__ import annotations

import base64
from dataclasses import fields, replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from verl_core.committed import content_hash
from verl_core.errors import DamagedBatch, DataError
from verl_core.rollout.codec import BatchMeta, decode, decode_meta, encode, encode_meta, number
from verl_core.types import BatchKey, BatchSpec, Sample

from tests.support.made import samples, spec

ids = arrays.arrays(np.int32, st.integers(0, 5))
logprobs = arrays.arrays(np.float32, st.integers(0, 5), elements=st.floats(width=32))
sample = st.builds(
    Sample,
    row=st.integers(0, 2**31),
    index=st.integers(0, 1000),
    seed=st.integers(0, 2**64 - 1),
    prompt=st.text(),
    response=st.text(),
    prompt_ids=ids,
    response_ids=ids,
    logprobs=logprobs,
    finish=st.sampled_from(["stop", "length"]),
    reward=st.floats(),
)


def bits(value: object) -> object:
    """Something that is equal only for the same bits: NaN equals itself, 0.0 differs from -0.0."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    return repr(value) if isinstance(value, float) else value


@given(st.lists(sample, max_size=4), st.integers(0, 9), st.integers(0, 9))
def test_what_is_decoded_is_what_was_encoded_bit_for_bit(made: list[Sample], epoch: int, version: int) -> None:
    key = BatchKey(epoch, 3)
    trailer, found = decode(encode(BatchSpec(key, version, ()), made))
    assert (trailer.key, trailer.policy_version, trailer.count) == (key, version, len(made))
    for old, new in zip(made, found, strict=True):
        assert [bits(getattr(new, f.name)) for f in fields(Sample)] == [
            bits(getattr(old, f.name)) for f in fields(Sample)
        ]


def test_equal_batches_have_equal_bytes_and_the_text_stands_in_the_clear() -> None:
    data = encode(spec(), samples(spec()))
    assert data == encode(spec(), samples(spec()))
    line = orjson.loads(data.splitlines()[0])
    assert list(line) == sorted(line)
    assert (line["prompt"], line["response"], line["reward"], line["row"]) == ("sort 4\n", "é0\u2028", 0.4, 4)
    assert base64.b64decode(line["prompt_ids"]) == np.array([4, 1], "<i4").tobytes()
    assert base64.b64decode(line["logprobs"]) == np.array([-0.1, -1e-30, -0.0], "<f4").tobytes()


def test_the_last_line_has_the_count_and_the_hash_of_all_before() -> None:
    data = encode(spec(2, epoch=1, version=7), samples(spec()))
    *lines, last = data.splitlines(keepends=True)
    assert orjson.loads(last) == {
        "epoch": 1, "batch": 2, "policy_version": 7, "count": 4, "hash": content_hash(b"".join(lines)),
    }  # fmt: skip


@given(st.data())
def test_any_byte_that_is_changed_lost_or_added_is_found(data: st.DataObject) -> None:
    good = encode(spec(), samples(spec()))
    at = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[at] ^= data.draw(st.integers(1, 255))
    body = good.rindex(b"\n", 0, -1)  # what stands in the last line is held against the spec, not against a hash
    for bad in [good[:at], good[:at] + b" " + good[at:], *([bytes(changed)] if at <= body else [])]:
        with pytest.raises(DamagedBatch, match="line"):
            decode(bad)


def test_damage_names_its_line() -> None:
    lines = encode(spec(), samples(spec())).splitlines(keepends=True)
    with pytest.raises(DamagedBatch, match="line 2"):
        decode(lines[0] + lines[1][:40] + b"\n" + b"".join(lines[2:]))
    with pytest.raises(DamagedBatch, match="line 4: the last line is missing"):
        decode(b"".join(lines[:4]))
    with pytest.raises(DamagedBatch, match="line 4: the lines before"):
        decode(b"".join(lines[1:]))


def test_text_that_cannot_be_stored_is_bad_input_with_its_line() -> None:
    bad = [samples(spec())[0], replace(samples(spec())[1], response="\ud800")]
    with pytest.raises(DataError, match="line 2"):
        encode(spec(), bad)


def meta() -> BatchMeta:
    return BatchMeta(
        "run", 0, 1, 2, 3, 4, 1.8e9, "rollout-0", 5, 12, 4, number(float("nan")), [4, 2], "blake3:0", {"a": 1}
    )


def test_meta_comes_back_and_no_byte_of_it_can_change_unseen() -> None:
    data = encode_meta(meta())
    assert decode_meta(data) == meta()
    assert orjson.loads(data)["complete"] is True
    for at in range(len(data)):
        for bad in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
            with pytest.raises(ValueError):
                decode_meta(bad)


def test_meta_of_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2"):
        decode_meta(encode_meta(replace(meta(), format=2)))
