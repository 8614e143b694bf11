"""The training engine against plain transformers and torch, on random models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_core.algorithms.grpo import Grpo, GrpoConfig
from verl_core.checkpoint.digest import policy_digest
from verl_core.errors import ConfigError, OutOfMemory, RunMismatch, WorkerError
from verl_core.protocols import LossFn
from verl_core.types import GenerateRequest, Optim, Sampling, Slice, TensorChunk, TensorSums, TrainBatch
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine, build
from verl_core_engines.hf import HfConfig
from verl_core_engines.hf import build as build_hf
from verl_core_engines.optimizer import learning_rate
from verl_core_engines.packing import lay_out, packs_of
from verl_core_engines.tensors import _sums_torch, tensor_sums

from tests.support.models import PACKABLE, VOCABULARY, context_of, random_model

LOSS: LossFn = Grpo(GrpoConfig()).loss
Result = tuple[torch.Tensor, Mapping[str, torch.Tensor]]
PLAIN = FsdpConfig(pack_groups=False)


def batch_of(step: int = 1) -> TrainBatch:
    """Three groups of three ragged responses, and log-probabilities somewhere near the policy's."""
    rng = np.random.default_rng(step)
    prompts = [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in (4, 7, 2)]
    responses = [rng.integers(3, VOCABULARY, n).astype(np.int32) for n in (3, 4, 2, 8, 5, 1, 5, 3, 3)]
    size = len(responses)
    return TrainBatch(
        step,
        tuple(prompts[i // 3] for i in range(size)),
        tuple(responses),
        tuple((-4 + rng.standard_normal(len(r)) * 0.1).astype(np.float32) for r in responses),
        rng.random(size),
        np.repeat(np.arange(3), 3),
        np.zeros(size, np.int64),
        rng.standard_normal(size),
    )


def engine_of(path: str, config: FsdpConfig | None = None, **changes: Any) -> FsdpEngine:
    return build(config or FsdpConfig(), context_of(path, **changes))


def saved(engine: FsdpEngine) -> dict[tuple[str, str], TensorChunk]:
    return {(c, chunk.name): chunk for c in ("actor", "optimizer") for chunk in engine.shards(c)}


def restore(engine: FsdpEngine, state: Mapping[tuple[str, str], TensorChunk]) -> None:
    def reader(component: str) -> Callable[[Slice], TensorChunk]:
        return lambda piece: state[component, piece.name]

    for component in ("actor", "optimizer"):
        engine.load(component, reader(component))


def as_bytes(state: Mapping[tuple[str, str], TensorChunk]) -> dict[tuple[str, str], bytes]:
    return {key: bytes(chunk.data) for key, chunk in state.items()}


def gradients(engine: FsdpEngine, batch: TrainBatch) -> dict[str, torch.Tensor]:
    """Of one step, taken where the engine has clipped and not yet applied them."""
    found: dict[str, torch.Tensor] = {}
    apply = engine._optimizer.apply

    def spy(step: int) -> float:
        found.update({n: p.grad.clone() for n, p in engine._optimizer._parameters.items() if p.grad is not None})
        return apply(step)

    engine._optimizer.apply = spy  # type: ignore[method-assign]
    engine.update(batch, LOSS)
    return found


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("qwen3"), tie_word_embeddings=True)


# --- the forward pass ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PACKABLE)
def test_packed_log_probabilities_are_those_of_each_sample_alone(kind: str, tmp_path: Path) -> None:
    engine, batch = engine_of(random_model(tmp_path, kind)), batch_of()
    assert engine._packed
    packs = list(packs_of(batch, 0, 1000))
    assert [len(p) for p in packs] == [3, 3, 3]
    with torch.no_grad():
        found = engine._logp(lay_out(batch, packs, 0, torch.device("cpu")))
        for i, (prompt, response) in enumerate(zip(batch.prompt_ids, batch.response_ids, strict=True)):
            row = torch.from_numpy(np.concatenate([prompt, response])).long()[None]
            expected = engine._model.module(row).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected = expected.gather(-1, torch.from_numpy(response).long()[:, None])[:, 0]
            assert (found[i, : len(response)] - expected).abs().max() < 1e-5
            assert (found[i, len(response) :] == 0).all()


@pytest.mark.parametrize("kind", PACKABLE)
def test_packed_gradients_are_those_of_the_padded_pass(kind: str, tmp_path: Path) -> None:
    path = random_model(tmp_path, kind)
    packed, padded = (gradients(engine_of(path, c), batch_of()) for c in (FsdpConfig(), PLAIN))
    assert packed.keys() == padded.keys()
    for name, gradient in packed.items():
        assert (gradient - padded[name]).abs().max() < 1e-5 * max(1.0, float(padded[name].abs().max())), name


def test_a_sliding_window_is_never_packed(tmp_path: Path) -> None:
    assert not engine_of(random_model(tmp_path / "a", "mistral", sliding_window=6))._packed
    sliding = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0}
    path = random_model(tmp_path / "b", "qwen2", **sliding)
    assert not engine_of(path)._packed
    batch = batch_of()
    engine = engine_of(path, micro_batch_size=2)
    assert math.isfinite(engine.update(batch, LOSS).loss)


@pytest.mark.parametrize("config", [FsdpConfig(), PLAIN, FsdpConfig(pack_tokens=12)])
def test_splitting_into_micro_batches_changes_rounding_only(qwen3: str, config: FsdpConfig) -> None:
    whole = gradients(engine_of(qwen3), batch_of())
    for size in (1, 2, 4):
        for name, gradient in gradients(engine_of(qwen3, config, micro_batch_size=size), batch_of()).items():
            assert (gradient - whole[name]).abs().max() < 1e-5, name


def test_the_loss_is_the_mean_over_all_response_tokens(qwen3: str) -> None:
    batch = batch_of()
    tokens = sum(map(len, batch.response_ids))

    def numbered(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        of_token = logp * 0 + torch.arange(1, logp.shape[1] + 1)
        return of_token, {"clip_fraction": of_token, "other": of_token * 2}

    metrics = engine_of(qwen3, micro_batch_size=3).update(batch, numbered)
    mean = sum(n * (n + 1) // 2 for n in map(len, batch.response_ids)) / tokens
    assert (metrics.loss, metrics.clip_fraction) == pytest.approx((mean, mean))
    assert metrics.extra == {"other": pytest.approx(2 * mean)}
    assert (metrics.tokens, metrics.grad_norm) == (tokens, 0.0)


def test_activation_checkpointing_changes_rounding_only(qwen3: str) -> None:
    whole = gradients(engine_of(qwen3), batch_of())
    for name, gradient in gradients(engine_of(qwen3, FsdpConfig(activation_checkpointing=True)), batch_of()).items():
        assert (gradient - whole[name]).abs().max() < 1e-5, name


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_policy_that_sampled_is_met_again_with_ratio_one(qwen3: str, temperature: float) -> None:
    train = engine_of(qwen3, temperature=temperature)
    rollout = build_hf(HfConfig(), context_of(qwen3))
    rollout.load_weights(0, train.export_weights())
    prompts = [(5, 6, 7), (9, 8, 7, 6, 5)]
    requests = [GenerateRequest(p, tuple(range(10 * i, 10 * i + 4))) for i, p in enumerate(prompts)]
    found = rollout.generate(requests, Sampling(n=4, temperature=temperature, max_new_tokens=9))
    completions = [c for group in found for c in group]
    batch = TrainBatch(
        1,
        tuple(np.array(prompts[i // 4], np.int32) for i in range(8)),
        tuple(c.ids for c in completions),
        tuple(c.logprobs for c in completions),
        np.zeros(8),
        np.repeat(np.arange(2), 4),
        np.zeros(8, np.int64),
        np.ones(8),
    )
    metrics = train.update(batch, LOSS)
    assert metrics.loss == pytest.approx(-1.0, abs=1e-5)
    assert metrics.kl == pytest.approx(0.0, abs=1e-9)
    assert metrics.clip_fraction == 0.0
    assert metrics.entropy == pytest.approx(-np.concatenate(batch.logprobs).mean(), abs=1e-4)


# --- the update ------------------------------------------------------------------------------


def test_the_update_is_that_of_adamw_with_clipping(qwen3: str) -> None:
    optim = Optim(lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, grad_clip=0.01)
    engine = engine_of(qwen3, optim=optim)
    name = "model.layers.0.mlp.up_proj.weight"
    own = engine._model.tensors[name].detach().clone().requires_grad_()
    plain = torch.optim.AdamW([own], lr=1e-2, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    for step in (1, 2):
        own.grad = gradients(engine, batch_of(step))[name]
        plain.step()
        assert (engine._model.tensors[name] - own).abs().max() < 1e-6


def test_an_update_raises_the_probability_of_what_was_good(qwen3: str) -> None:
    engine = engine_of(qwen3, optim=Optim(lr=1e-3))

    def good(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        return -logp, {}

    losses = [engine.update(batch_of(1), good).loss for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.1


def test_the_learning_rate_is_a_pure_function_of_the_step() -> None:
    def rates(schedule: str, warmup: int = 0) -> list[float]:
        optim = Optim(lr=1.0, schedule=schedule, warmup_steps=warmup)
        return [round(learning_rate(optim, step, 4 + warmup), 4) for step in range(1, 5 + warmup)]

    assert rates("constant") == [1.0, 1.0, 1.0, 1.0]
    assert rates("linear") == [1.0, 0.75, 0.5, 0.25]
    assert rates("cosine") == [1.0, 0.8536, 0.5, 0.1464]
    assert rates("linear", warmup=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_two_engines_make_the_same_bits(qwen3: str) -> None:
    engines = [engine_of(qwen3), engine_of(qwen3)]
    torch.manual_seed(99)  # whatever state the generator is in
    for engine in engines:
        for step in (1, 2):
            engine.update(batch_of(step), LOSS)
    assert engines[0].sums() == engines[1].sums()
    assert engines[0].platform() == engines[1].platform()


@pytest.mark.parametrize("poison", ["loss", "gradient"])
def test_a_step_that_is_not_finite_is_named_and_changes_nothing(qwen3: str, poison: str) -> None:
    engine = engine_of(qwen3)
    engine.update(batch_of(1), LOSS)
    before = as_bytes(saved(engine))

    def broken(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        if poison == "loss":
            return logp * torch.nan, {}
        return (logp - logp.detach()).abs().sqrt(), {}  # finite, with an infinite slope

    with pytest.raises(WorkerError, match=r"step 2: loss .* is not finite"):
        engine.update(batch_of(2), broken)
    assert as_bytes(saved(engine)) == before
    assert all(p.grad is None for p in engine._model.module.parameters())


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError(),
    ],
)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_out_of_memory_in_any_micro_batch_changes_nothing(qwen3: str, error: Exception, call: int) -> None:
    engine, calls = engine_of(qwen3, micro_batch_size=3), []
    engine.update(batch_of(1), LOSS)
    before = as_bytes(saved(engine))

    def starved(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        calls.append(len(logp))
        if len(calls) == call:
            raise error
        return LOSS(logp, old_logp, advantages, mask)

    with pytest.raises(OutOfMemory, match="step 2"):
        engine.update(batch_of(2), starved)
    assert as_bytes(saved(engine)) == before
    assert all(p.grad is None for p in engine._model.module.parameters())
    engine.update(batch_of(2), LOSS)
    undisturbed = engine_of(qwen3, micro_batch_size=3)
    for step in (1, 2):
        undisturbed.update(batch_of(step), LOSS)
    assert engine.sums() == undisturbed.sums()


def test_a_real_failed_allocation_is_out_of_memory(qwen3: str) -> None:
    def greedy(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        return torch.empty(1 << 58), {}

    with pytest.raises(OutOfMemory, match="allocate"):
        engine_of(qwen3).update(batch_of(), greedy)


def test_other_errors_pass_through(qwen3: str) -> None:
    def broken(logp: torch.Tensor, old_logp: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> Result:
        raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        engine_of(qwen3).update(batch_of(), broken)


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
