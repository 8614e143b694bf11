"""Reward ``sequence_classifier``: a score is a function of prompt, response and weights alone, and nothing unsafe is
loaded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from verl_core.config.schema import RewardConfig
from verl_core.data.hashes import FileHashes
from verl_core.errors import ConfigError, ModelError
from verl_core.plugins import load
from verl_core.protocols import Reward
from verl_core.registry import REWARD
from verl_core.rewards.models import digest_of, reward_errors, source_of
from verl_core.types import BuildContext, Prompt

from tests.support.models import random_classifier

REGISTRY = load(["hf"], defaults=False).registry


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(random_classifier(tmp_path_factory.mktemp("classifier") / "model"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model to be spoilt."""
    return Path(random_classifier(tmp_path / "model"))


def built(path: Path, **options: object) -> Reward:
    return REGISTRY.build(REWARD, "sequence_classifier", {"path": str(path), **options}, BuildContext())


def prompt(text: str) -> Prompt:
    return Prompt(0, text, "", (1,))


def pairs(count: int) -> list[tuple[str, str]]:
    dice = random.Random(3)
    words = ["".join(dice.choices("abcdefgh", k=dice.randint(0, 12))) for _ in range(2 * count)]
    return [(f"{one}>", other) for one, other in zip(words[::2], words[1::2], strict=True)]


def scores(reward: Reward, texts: list[tuple[str, str]]) -> list[float]:
    return reward.score([prompt(one) for one, _ in texts], [other for _, other in texts])


def test_a_score_has_the_same_bits_in_every_batch(model: Path) -> None:
    reward, texts = built(model), pairs(40)
    alone = [scores(reward, [text])[0] for text in texts]
    assert len(set(alone)) > 30, "scores that do not differ say nothing"
    assert scores(reward, texts) == alone
    for seed in range(5):
        order = random.Random(seed).sample(range(len(texts)), random.Random(seed).randint(2, 40))
        assert scores(built(model), [texts[i] for i in order]) == [alone[i] for i in order]


def test_a_score_is_the_output_of_the_classifier_on_prompt_and_response(model: Path) -> None:
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with torch.inference_mode():
        wanted = float(plain(**tokenizer("dcba>abcd", return_tensors="pt")).logits)
    assert scores(built(model), [("dcba>", "abcd")]) == [pytest.approx(wanted, abs=1e-5)]


def test_a_text_beyond_the_positions_is_an_error_that_says_which_limits_to_lower(model: Path) -> None:
    with pytest.raises(ConfigError, match="reward model has 128") as raised:
        scores(built(model), [("a" * 120, "b" * 20)])
    assert "data.max_response_length" in raised.value.remedy


@pytest.mark.parametrize("outputs", [2, 3])
def test_more_than_one_output_is_refused(tmp_path: Path, outputs: int) -> None:
    with pytest.raises(ModelError, match=f"has {outputs} outputs, not one"):
        built(Path(random_classifier(tmp_path / "model", num_labels=outputs)))


def test_a_folder_without_the_classifiers_head_is_refused(own: Path) -> None:
    weights = load_file(own / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"weights do not fit config.json, first at score\.weight"):
        built(own)


def a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def remote_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))


def other_tokenizer(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "EvilTokenizer"}))


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (a_pickle, "the weights are a pickle"),
        (remote_code, "asks for code that comes with the model"),
        (other_tokenizer, "'EvilTokenizer' is not on the list"),
        (no_weights, "no weights"),
    ],
)
def test_what_is_not_safe_or_not_whole_is_refused_before_a_start(
    own: Path, spoil: Callable[[Path], None], said: str
) -> None:
    assert reward_errors(REGISTRY, RewardConfig("sequence_classifier", {"path": str(own)}), []) == []
    spoil(own)
    [error] = reward_errors(REGISTRY, RewardConfig("sequence_classifier", {"path": str(own)}), [])
    assert said in error.what
    assert "allow_pickle" not in error.remedy, "that key is for the actor"
    with pytest.raises(ModelError):
        built(own)


@pytest.mark.parametrize(("path", "said"), [("/nowhere/model", "does not exist"), ("org/model", "not absolute")])
def test_a_folder_that_is_not_there_is_refused_before_a_start(path: str, said: str) -> None:
    [error] = reward_errors(REGISTRY, RewardConfig("sequence_classifier", {"path": path}), [])
    assert said in error.what


def test_the_digest_is_that_of_all_that_decides_about_scores(own: Path, tmp_path: Path) -> None:
    def digest() -> str:
        return digest_of(str(own), FileHashes())

    before = digest()
    assert digest_of(random_classifier(tmp_path / "again"), FileHashes()) == before
    assert digest_of(random_classifier(tmp_path / "other", seed=8), FileHashes()) != before
    (own / "README.md").write_text("says nothing")
    assert digest() == before
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        content = (own / name).read_bytes()
        (own / name).write_bytes(content[:-1] + b" ")
        assert digest() != before, name
        (own / name).write_bytes(content)
    assert digest() == before


def test_a_reward_that_is_no_model_has_no_digest() -> None:
    source = source_of(REGISTRY, RewardConfig("exact_match", {"strip": False}), [], FileHashes())
    assert (source.name, source.path, source.digest) == ("exact_match", "", "")
