"""The update of the training engine against plain transformers and torch, on random models."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from verl_core.errors import OutOfMemory, WorkerError
from verl_core.types import GenerateRequest, Optim, Sampling, TrainBatch
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine
from verl_core_engines.hf import HfConfig
from verl_core_engines.hf import build as build_hf
from verl_core_engines.optimizer import learning_rate
from verl_core_engines.packing import lay_out, packs_of

from tests.support.models import PACKABLE, context_of, random_model
from tests.support.training import LOSS, PLAIN, Result, as_bytes, batch_of, engine_of, saved


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
