"""What leaves the training engine and comes back: checkpoints, weights, fingerprints."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_core.checkpoint.digest import policy_digest
from verl_core.errors import ConfigError, RunMismatch, WorkerError
from verl_core.types import Optim, Slice, TensorChunk, TensorSums
from verl_core_engines.tensors import _sums_torch, tensor_sums

from tests.support.models import random_model
from tests.support.training import LOSS, PLAIN, as_bytes, batch_of, engine_of, restore, saved


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("qwen3"), tie_word_embeddings=True)


# --- the state -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_goes_on_from_saved_state_as_if_never_disturbed(qwen3: str, dtype: str) -> None:
    undisturbed = engine_of(qwen3, dtype=dtype)
    for step in (1, 2, 3):
        undisturbed.update(batch_of(step), LOSS)
    first = engine_of(qwen3, dtype=dtype)
    first.update(batch_of(1), LOSS)
    state = saved(first)
    copied = as_bytes(state)
    first.update(batch_of(2), LOSS)
    assert as_bytes(state) == copied, "a later update must not change what was handed out"
    resumed = engine_of(qwen3, dtype=dtype)
    restore(resumed, state)
    assert as_bytes(saved(resumed)) == copied
    for step in (2, 3):
        resumed.update(batch_of(step), LOSS)
    assert resumed.sums() == undisturbed.sums()
    assert as_bytes(saved(resumed)) == as_bytes(saved(undisturbed))


def test_the_state_before_the_first_update_is_zeros_and_round_trips(qwen3: str) -> None:
    fresh, other = engine_of(qwen3), engine_of(qwen3)
    state = saved(fresh)
    zeros = [chunk for (component, _), chunk in state.items() if component == "optimizer"]
    assert all(not any(bytes(chunk.data)) for chunk in zeros)
    other.update(batch_of(1), LOSS)
    restore(other, state)
    assert as_bytes(saved(other)) == as_bytes(state)
    for engine in (fresh, other):
        engine.update(batch_of(1), LOSS)
    assert fresh.sums() == other.sums()


def test_shards_are_named_and_placed_as_the_slices_say(qwen3: str) -> None:
    engine = engine_of(qwen3)
    for component in ("actor", "optimizer"):
        chunks = list(engine.shards(component))
        assert [Slice(c.name, c.offset, c.shape) for c in chunks] == list(engine.slices(component))
        assert all(c.shape == c.global_shape and not any(c.offset) for c in chunks)
        assert all(len(bytes(c.data)) == math.prod(c.shape) * (8 if c.dtype == "I64" else 4) for c in chunks)
    names = {c.name for c in engine.shards("actor")}
    assert names == {name for name, _ in engine.export_weights()}
    assert "lm_head.weight" not in names, "tied weights are stored once"
    optimizer = {f"{kind}.{name}" for kind in ("exp_avg", "exp_avg_sq") for name in names}
    assert {c.name for c in engine.shards("optimizer")} == {"step", *optimizer}


def test_bfloat16_keeps_bfloat16_weights_and_single_precision_state(qwen3: str) -> None:
    engine = engine_of(qwen3, dtype="bfloat16")
    assert {c.dtype for c in engine.shards("actor")} == {"BF16"}
    kinds = {c.name.split(".")[0]: c.dtype for c in engine.shards("optimizer")}
    assert kinds == {"step": "I64", "exp_avg": "F32", "exp_avg_sq": "F32", "master": "F32"}
    small = engine_of(qwen3, dtype="bfloat16", optim=Optim(lr=1e-6))
    before = as_bytes(saved(small))
    small.update(batch_of(1), LOSS)
    changed = {key for key, data in as_bytes(saved(small)).items() if before[key] != data}
    assert ("optimizer", "master.model.embed_tokens.weight") in changed, "small steps must not be lost to rounding"


def test_state_of_another_model_is_refused(qwen3: str, tmp_path: Path) -> None:
    other = saved(engine_of(random_model(tmp_path, intermediate_size=48, tie_word_embeddings=True)))
    with pytest.raises(RunMismatch, match="mlp"):
        restore(engine_of(qwen3), other)
    with pytest.raises(RunMismatch, match="BF16"):
        restore(engine_of(qwen3), saved(engine_of(qwen3, dtype="bfloat16")))
    short = {k: replace(c, data=bytes(c.data)[:-1]) for k, c in saved(engine_of(qwen3)).items()}
    with pytest.raises(RunMismatch, match="in the checkpoint"):
        restore(engine_of(qwen3), short)


def test_exported_weights_are_no_copies(qwen3: str) -> None:
    engine = engine_of(qwen3)
    exported = dict(engine.export_weights())
    engine.update(batch_of(1), LOSS)
    assert all(torch.equal(value, exported[name]) for name, value in engine.export_weights())


def test_files_are_the_small_ones_of_the_model(qwen3: str) -> None:
    files = engine_of(qwen3).files()
    assert set(files) == {"config.json", "generation_config.json"}
    assert files["config.json"] == (Path(qwen3) / "config.json").read_bytes()


def test_more_ranks_than_one_are_refused(qwen3: str) -> None:
    with pytest.raises(ConfigError, match="one rank"):
        engine_of(qwen3, world_size=2)


def test_an_unknown_component_is_an_error(qwen3: str) -> None:
    with pytest.raises(WorkerError, match="critic"):
        engine_of(qwen3).slices("critic")


@pytest.mark.parametrize(("key", "value"), [("device", "tpu"), ("dtype", "int4")])
def test_an_unknown_device_or_dtype_is_an_error(qwen3: str, key: str, value: str) -> None:
    changes: dict[str, Any] = {key: value}
    with pytest.raises(ConfigError, match=value):
        engine_of(qwen3, **changes)


def test_the_platform_names_what_the_bits_depend_on(qwen3: str) -> None:
    key = engine_of(qwen3).platform()
    assert (key.torch, key.threads, key.dtype, key.ranks) == (torch.__version__, 1, "float32", 1)
    assert key.machine.startswith("cpu ")
    assert key != engine_of(qwen3, micro_batch_size=2).platform()
    assert key != engine_of(qwen3, PLAIN).platform()


# --- the fingerprint -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "bits_of"),
    [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.int64, torch.int64),
        (torch.bool, torch.uint8),
    ],
)
@pytest.mark.parametrize("size", [1, 1000, 1 << 15, (1 << 16) + 3])
def test_sums_are_those_of_the_bit_patterns(dtype: torch.dtype, bits_of: torch.dtype, size: int) -> None:
    tensor = (torch.randn(size, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    integers = tensor.view(bits_of)
    bits = [b % (1 << 8 * integers.element_size()) for b in integers.tolist()]
    found = tensor_sums("x", tensor)
    assert found.plain == sum(bits) % 2**64
    assert found.weighted == sum((i + 1) * b for i, b in enumerate(bits)) % 2**64
    on_device = _sums_torch(integers, 5)
    shifted = tensor_sums("x", tensor, first=5)
    assert (on_device[0] % 2**64, on_device[1] % 2**64) == (shifted.plain, shifted.weighted)


def test_sums_of_shards_add_up_to_the_digest_of_the_whole() -> None:
    tensor = torch.randn(12, 7, generator=torch.Generator().manual_seed(1))
    other = tensor_sums("y", torch.ones(3))
    shards = [tensor_sums("x", tensor[a:b], first=a * 7) for a, b in ((0, 5), (5, 6), (6, 12))]
    whole = policy_digest([tensor_sums("x", tensor), other])
    assert policy_digest([other, *shards[::-1]]) == whole
    assert whole.startswith("sums:")


def test_the_digest_sees_names_values_and_places() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    digests = {
        policy_digest([tensor_sums("x", one)]),
        policy_digest([tensor_sums("x", two)]),
        policy_digest([tensor_sums("y", one)]),
        policy_digest([tensor_sums("x", one), TensorSums("y", 0, 0)]),
    }
    assert len(digests) == 4


def test_the_sums_of_an_engine_change_with_every_update(qwen3: str) -> None:
    engine = engine_of(qwen3)
    digests = [policy_digest(engine.sums())]
    for step in (1, 2):
        engine.update(batch_of(step), LOSS)
        digests.append(policy_digest(engine.sums()))
    assert len(set(digests)) == 3
    assert [s.name for s in engine.sums()] == sorted(s.name for s in engine.sums())


def test_memory_of_a_copy_is_used_again_once_nobody_holds_any_piece_of_it(qwen3: str) -> None:
    engine = engine_of(qwen3)
    first = list(engine.shards("optimizer"))
    place, piece = _address(first), memoryview(first[3].data)[1:9]
    content = bytes(piece)
    del first
    engine.update(batch_of(1), LOSS)
    second = list(engine.shards("optimizer"))
    assert _address(second) != place
    assert bytes(piece) == content, "one who holds a piece of a copy holds it as it was"
    del piece
    third = list(engine.shards("optimizer"))
    assert _address(third) == place
    assert [bytes(chunk.data) for chunk in third] == [bytes(chunk.data) for chunk in second]


def _address(chunks: list[TensorChunk]) -> int:
    return int(np.frombuffer(chunks[0].data, np.uint8).ctypes.data)
