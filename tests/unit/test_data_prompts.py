"""From rows to prompts: templates, keys, limits, and the same prompts on every start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from verl_core.config.schema import DataConfig
from verl_core.data.prompts import load_prompts
from verl_core.data.tokenizer import Tokenizer, load_tokenizer
from verl_core.errors import DataError
from verl_core.quickstart.model import character_tokenizer
from verl_core.types import Prompt

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k" / "train.jsonl"
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}>"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bool, Path]:
    """A tokenizer folder with (True) and without (False) a chat template."""
    made = {}
    for chat in (True, False):
        folder = made[chat] = tmp_path_factory.mktemp("model")
        inner = character_tokenizer()
        inner.chat_template = TEMPLATE if chat else None
        inner.save_pretrained(folder)
        (folder / "config.json").write_text('{"model_type": "qwen3"}')
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return made


@pytest.fixture(scope="module")
def plain(folders: Mapping[bool, Path]) -> Tokenizer:
    return load_tokenizer(str(folders[False]))


@pytest.fixture(scope="module")
def chat(folders: Mapping[bool, Path]) -> Tokenizer:
    return load_tokenizer(str(folders[True]))


def prompts(path: Path, rows: Sequence[object], tokenizer: Tokenizer, **keys: object) -> tuple[Prompt, ...]:
    file = path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(train_files=[str(file)])
    for key, value in keys.items():
        setattr(config, key, value)
    return load_prompts(config, tokenizer, split="train", seed=0).prompts


def test_a_text_prompt_is_encoded_as_it_is_where_there_is_no_template(tmp_path: Path, plain: Tokenizer) -> None:
    (prompt,) = prompts(tmp_path, [{"prompt": "ba>", "answer": "ab", "level": 3, "tags": ["x"]}], plain)
    assert (prompt.row, prompt.text, prompt.answer) == (0, "ba>", "ab")
    assert prompt.ids == tuple(plain.encode("ba>"))
    assert prompt.extra == {"level": "3", "tags": '["x"]'}


def test_system_prompt_and_suffix_frame_a_plain_prompt(tmp_path: Path, plain: Tokenizer) -> None:
    (prompt,) = prompts(tmp_path, [{"prompt": "ba", "answer": 1}], plain, system_prompt="sort", prompt_suffix=">")
    assert prompt.text == "sort\n\nba>"
    assert prompt.answer == "1"


def test_a_template_is_applied_and_its_text_gets_no_second_bos(tmp_path: Path, chat: Tokenizer) -> None:
    keys = {"system_prompt": "sort", "prompt_suffix": " now"}
    (prompt,) = prompts(tmp_path, [{"prompt": "ba", "answer": "ab"}], chat, **keys)
    assert prompt.text == "system sort user ba now >"
    assert prompt.ids == tuple(chat.encode_all([prompt.text], special=False)[0])
    assert prompt.ids[0] != 1


def test_chat_messages_get_the_suffix_on_the_last_user_text_and_keep_their_own_system_prompt(
    tmp_path: Path, chat: Tokenizer
) -> None:
    turns = [("system", "own"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    row = {"prompt": [{"role": role, "content": content} for role, content in turns], "answer": ""}
    (prompt,) = prompts(tmp_path, [row], chat, system_prompt="other", prompt_suffix="!")
    assert prompt.text == "system own user a assistant b user c! assistant d >"


def test_the_template_can_be_left_out(tmp_path: Path, chat: Tokenizer) -> None:
    (prompt,) = prompts(tmp_path, [{"prompt": "ba>", "answer": "ab"}], chat, chat_template="never")
    assert prompt.text == "ba>"
    assert prompt.ids[0] == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, "neither text nor messages"),
        (None, "neither text nor messages"),
        ([], "neither text nor messages"),
        ([{"role": "user"}], "a role and a content"),
        (["hello"], "a role and a content"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, chat: Tokenizer, value: object, reason: str) -> None:
    rows = [{"prompt": "fine", "answer": ""}, {"prompt": value, "answer": ""}]
    with pytest.raises(DataError, match=reason) as caught:
        prompts(tmp_path, rows, chat)
    assert caught.value.where.endswith("rows.jsonl:2")


def test_messages_without_a_template_are_refused(tmp_path: Path, plain: Tokenizer) -> None:
    with pytest.raises(DataError, match="need a chat template"):
        prompts(tmp_path, [{"prompt": [{"role": "user", "content": "a"}], "answer": ""}], plain)


def test_answers_may_be_left_out_only_when_the_config_says_so(tmp_path: Path, plain: Tokenizer) -> None:
    with pytest.raises(DataError, match="no column 'answer'"):
        prompts(tmp_path, [{"prompt": "a"}], plain)
    with pytest.raises(DataError, match="null"):
        prompts(tmp_path, [{"prompt": "a", "answer": None}], plain)
    (prompt,) = prompts(tmp_path, [{"prompt": "a"}], plain, answer_key="")
    assert prompt.answer == ""


ROWS = [{"prompt": "a" * n, "answer": ""} for n in (3, 9, 4, 10, 5)]


def test_a_prompt_that_is_too_long_is_an_error_that_names_its_line(tmp_path: Path, plain: Tokenizer) -> None:
    with pytest.raises(DataError, match="10 tokens, 8 are allowed") as caught:
        prompts(tmp_path, ROWS, plain, max_prompt_length=8)
    assert caught.value.where.endswith("rows.jsonl:2")


def test_skipping_long_prompts_leaves_the_row_numbers_of_the_others(tmp_path: Path, plain: Tokenizer) -> None:
    kept = prompts(tmp_path, ROWS, plain, max_prompt_length=8, overlong_prompts="skip")
    assert [prompt.row for prompt in kept] == [0, 2, 4]
    with pytest.raises(DataError, match="no prompt is left"):
        prompts(tmp_path, ROWS, plain, max_prompt_length=2, overlong_prompts="skip")


def test_val_files_are_read_for_val_and_must_be_there(tmp_path: Path, plain: Tokenizer) -> None:
    file = tmp_path / "val.jsonl"
    file.write_text('{"prompt": "v", "answer": ""}\n')
    config = DataConfig(train_files=["/nowhere"], val_files=[str(file)])
    found = load_prompts(config, plain, split="val", seed=0)
    assert [prompt.text for prompt in found.prompts] == ["v"]
    assert [name for name, _, _ in found.files] == ["val.jsonl"]
    with pytest.raises(DataError, match="no data files"):
        load_prompts(DataConfig(train_files=[str(file)]), plain, split="val", seed=0)


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not at hand")
def test_all_of_gsm8k_loads_with_its_answers_verbatim(plain: Tokenizer) -> None:
    config = DataConfig(train_files=[str(GSM8K)], prompt_key="question", max_prompt_length=2000)
    found = load_prompts(config, plain, split="train", seed=0)
    assert len(found.prompts) == 7473
    assert all("####" in prompt.answer for prompt in found.prompts)
    assert found.fingerprint.startswith("sha256:")


def test_a_made_task_has_other_rows_for_val_and_for_another_seed(plain: Tokenizer) -> None:
    config = DataConfig(task="reasoning_gym:chain_sum", task_size=5, task_options={"max_digits": 2})
    train = load_prompts(config, plain, split="train", seed=0)
    assert train == load_prompts(config, plain, split="train", seed=0)
    assert all({"task", "task_options", "entry"} == prompt.extra.keys() for prompt in train.prompts)
    others = [load_prompts(config, plain, split="val", seed=0), load_prompts(config, plain, split="train", seed=1)]
    for other in others:
        assert len(other.prompts) == 5
        assert {prompt.text for prompt in other.prompts}.isdisjoint(prompt.text for prompt in train.prompts)
        assert other.fingerprint != train.fingerprint
