"""The rollout engine against transformers' own forward pass, on random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from verl_core.errors import ConfigError, ModelError, WorkerError
from verl_core.types import Completion, GenerateRequest, Sampling
from verl_core_engines.hf import HfConfig, HfEngine, build

from tests.support.models import EOS, PACKABLE, VOCABULARY, context_of, random_model

LONG = Sampling(n=2, max_new_tokens=12)


def loaded(path: str, **changes: Any) -> HfEngine:
    engine = build(HfConfig(), context_of(path, **changes))
    engine.load_weights(3, weights(engine))
    return engine


def weights(engine: HfEngine) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor.detach().clone()) for name, tensor in engine._model.tensors.items())


def requests(lengths: tuple[int, ...] = (3, 9, 5, 9), n: int = 2) -> list[GenerateRequest]:
    rng = np.random.default_rng(1)
    return [
        GenerateRequest(tuple(rng.integers(3, VOCABULARY, length).tolist()), tuple(range(10 * i, 10 * i + n)))
        for i, length in enumerate(lengths)
    ]


def ids(found: list[list[Completion]]) -> list[list[list[int]]]:
    return [[c.ids.tolist() for c in group] for group in found]


def flat(found: list[list[Completion]]) -> list[Completion]:
    return [c for group in found for c in group]


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_model(tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize("kind", [*PACKABLE, "mistral"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(kind: str, tmp_path: Path) -> None:
    changes = {"sliding_window": 6} if kind == "mistral" else {}
    engine = loaded(random_model(tmp_path, kind, **changes))
    for request, group in zip(requests(), engine.generate(requests(), LONG), strict=True):
        for found in group:
            row = torch.tensor([[*request.prompt_ids, *found.ids.tolist()]])
            with torch.no_grad():
                expected = engine._model.module(row).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
            expected = expected.gather(-1, torch.from_numpy(found.ids).long()[:, None])[:, 0]
            assert np.abs(found.logprobs - expected.numpy()).max() < 1e-5


def test_greedy_equals_generate_of_transformers(qwen3: str) -> None:
    engine = loaded(qwen3)
    greedy = Sampling(n=1, temperature=0.0, max_new_tokens=12)
    for request, group in zip(requests(n=1), engine.generate(requests(n=1), greedy), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        whole = engine._model.module.generate(prompt, do_sample=False, max_new_tokens=12)
        assert group[0].ids.tolist() == whole[0, prompt.shape[1] :].tolist()


def test_a_sample_depends_on_its_seed_and_not_on_the_batch_around_it(qwen3: str) -> None:
    engine = loaded(qwen3)
    together = ids(engine.generate(requests(), LONG))
    assert [ids(engine.generate([r], LONG))[0] for r in requests()] == together
    assert ids(engine.generate(requests()[::-1], LONG)) == together[::-1]
    split = Sampling(n=2, max_new_tokens=12, max_num_seqs=4)
    assert ids(engine.generate(requests(), split)) == together
    one = [GenerateRequest(r.prompt_ids, r.seeds[1:]) for r in requests()]
    assert ids(engine.generate(one, LONG)) == [group[1:] for group in together]


def test_the_same_call_gives_the_same_bits_in_another_engine(qwen3: str) -> None:
    first, second = (loaded(qwen3).generate(requests(), LONG) for _ in range(2))
    for a, b in zip(flat(first), flat(second), strict=True):
        assert (a.ids.tobytes(), a.logprobs.tobytes()) == (b.ids.tobytes(), b.logprobs.tobytes())


def test_a_sample_ends_with_its_first_end_of_sequence_token(qwen3: str) -> None:
    ends = (EOS, *range(20, 25))  # often enough that rows end one by one, and the batch shrinks
    found = flat(loaded(qwen3, eos_ids=ends).generate(requests(n=8), Sampling(n=8, max_new_tokens=12)))
    assert {c.finish for c in found} == {"stop", "length"}
    assert len({len(c.ids) for c in found}) > 3
    for c in found:
        assert len(c.ids) == len(c.logprobs) <= 12
        assert np.isin(c.ids[:-1], ends).sum() == 0
        assert (c.finish == "stop") == (c.ids[-1] in ends)
        assert c.finish == "stop" or len(c.ids) == 12
    without = flat(loaded(qwen3, eos_ids=()).generate(requests(n=8), Sampling(n=8, max_new_tokens=12)))
    assert all(c.ids.tolist() == w.ids[: len(c.ids)].tolist() for c, w in zip(found, without, strict=True))


def test_weights_must_come_whole_before_anything_is_generated(qwen3: str) -> None:
    engine = build(HfConfig(), context_of(qwen3))
    assert engine.version() == -1
    with pytest.raises(WorkerError, match="no policy is loaded"):
        engine.generate(requests(), LONG)
    engine.load_weights(4, weights(engine))
    assert engine.version() == 4


@pytest.mark.parametrize("wrong", ["missing", "unknown", "shape"])
def test_a_failed_load_poisons_the_engine_until_one_succeeds(qwen3: str, wrong: str) -> None:
    engine = loaded(qwen3)
    before = ids(engine.generate(requests(), LONG))
    given = list(weights(engine))
    bad = {
        "missing": given[:-1],
        "unknown": [*given, ("model.extra.weight", torch.zeros(2))],
        "shape": [(given[0][0], given[0][1][:-1]), *given[1:]],
    }[wrong]
    with pytest.raises(WorkerError, match="did not come" if wrong == "missing" else "is not a tensor of this model"):
        engine.load_weights(5, bad)
    assert engine.version() == -1
    with pytest.raises(WorkerError, match="no policy is loaded"):
        engine.generate(requests(), LONG)
    engine.load_weights(6, given)
    assert ids(engine.generate(requests(), LONG)) == before


def test_tied_weights_may_come_under_one_name_or_both(tmp_path: Path) -> None:
    engine = loaded(random_model(tmp_path, "qwen3", tie_word_embeddings=True))
    given = list(weights(engine))
    assert "lm_head.weight" not in dict(given)
    tied = ("lm_head.weight", dict(given)["model.embed_tokens.weight"])
    engine.load_weights(1, [*given, tied])
    engine.load_weights(2, [tied, *(g for g in given if g[0] != "model.embed_tokens.weight")])
    assert engine.version() == 2


def test_new_weights_change_what_is_generated(qwen3: str) -> None:
    engine = loaded(qwen3)
    before = engine.generate(requests(), LONG)
    engine.load_weights(4, [(name, value * 1.5) for name, value in weights(engine)])
    assert ids(engine.generate(requests(), LONG)) != ids(before)


def test_weights_that_are_not_numbers_are_reported(qwen3: str) -> None:
    engine = loaded(qwen3)
    engine.load_weights(4, [(name, value * torch.nan) for name, value in weights(engine)])
    with pytest.raises(WorkerError, match="logits are not numbers"):
        engine.generate(requests(), LONG)


def test_more_positions_than_the_model_has_are_refused(qwen3: str) -> None:
    with pytest.raises(ConfigError, match="positions"):
        loaded(qwen3).generate(requests(), Sampling(n=2, max_new_tokens=125))


def test_no_requests_give_no_completions(qwen3: str) -> None:
    assert loaded(qwen3).generate([], LONG) == []


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    path = random_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        build(HfConfig(), context_of(path))


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    path = random_model(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"do not fit config.json, first at model\.norm\.weight"):
        build(HfConfig(), context_of(path))


def test_a_config_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = random_model(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(ModelError, match="cannot be loaded"):
        build(HfConfig(), context_of(path))
