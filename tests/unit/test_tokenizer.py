"""The tokenizer: special tokens where they belong, no code from a folder, only allowed classes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from verl_core.data.tokenizer import Tokenizer, load_tokenizer
from verl_core.errors import DataError, ModelError
from verl_core.quickstart.model import character_tokenizer

CHATML = (
    "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def save(folder: Path, chat_template: str | None = None, **tokenizer_config: object) -> Path:
    """A model folder that is whole enough for its tokenizer to be loaded."""
    inner = character_tokenizer()
    inner.chat_template = chat_template
    inner.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | tokenizer_config))
    return folder


@pytest.fixture
def plain(tmp_path: Path) -> Tokenizer:
    return load_tokenizer(str(save(tmp_path)))


def test_text_survives_the_round_trip_with_one_bos_in_front(plain: Tokenizer) -> None:
    ids = plain.encode("abc>")
    assert ids[0] == 1
    assert len(ids) == 5
    assert plain.decode([*ids, *plain.eos_ids, plain.pad_id]) == "abc>"
    assert plain.encode_all(["abc>", "a b"]) == [ids, plain.encode("a b")]
    assert plain.encode_all(["abc>"], special=False) == [ids[1:]]
    assert plain.encode_all([]) == []


def test_pad_and_eos_come_from_the_tokenizer_and_the_generation_config(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7, 2]}')
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.pad_id, tokenizer.eos_ids) == (0, (2, 7))
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_tokenizer(str(tmp_path))


def test_without_a_chat_template_there_is_no_chat(plain: Tokenizer) -> None:
    assert plain.chat([{"role": "user", "content": "hi"}]) is None


def test_a_chat_template_is_rendered_with_the_models_turn_opened(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save(tmp_path, CHATML)))
    messages = [{"role": "system", "content": "sort"}, {"role": "user", "content": "ba"}]
    assert tokenizer.chat(messages) == "[system] sort [user] ba >"


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day(tmp_path: Path) -> None:
    template = (
        "{% if strftime_now is defined %}{{ strftime_now('%Y-%m-%d') }}, {{ strftime_now('%d %b %Y') }}{% endif %}"
    )
    tokenizer = load_tokenizer(str(save(tmp_path, template)))
    assert tokenizer.chat([{"role": "user", "content": "x"}]) == "2024-07-26, 26 Jul 2024"


def test_a_template_that_refuses_is_a_data_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(save(tmp_path, "{{ raise_exception('roles must alternate') }}")))
    with pytest.raises(DataError, match="roles must alternate"):
        tokenizer.chat([{"role": "user", "content": "x"}])


def test_the_digest_follows_whatever_decides_about_token_ids(tmp_path: Path) -> None:
    first = load_tokenizer(str(save(tmp_path / "a"))).digest
    assert first.startswith("blake3:")
    assert load_tokenizer(str(save(tmp_path / "b"))).digest == first
    assert load_tokenizer(str(save(tmp_path / "c", CHATML))).digest != first
    assert load_tokenizer(str(save(tmp_path / "d", extra="x"))).digest != first


def test_its_files_make_another_folder_with_the_same_tokenizer(tmp_path: Path) -> None:
    first = load_tokenizer(str(save(tmp_path / "a", CHATML)))
    (tmp_path / "b").mkdir()
    for name, data in first.files().items():
        (tmp_path / "b" / name).write_bytes(data)
    (tmp_path / "b" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    second = load_tokenizer(str(tmp_path / "b"))
    assert second.digest == first.digest
    assert second.encode("xyz") == first.encode("xyz")


@pytest.mark.parametrize("name", ["SomeTokenizer", "BertTokenizerFast"])
def test_a_class_that_is_not_on_the_list_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        load_tokenizer(str(save(tmp_path, tokenizer_class=name)))


def test_a_class_that_the_model_type_would_bring_in_is_refused_too(tmp_path: Path) -> None:
    save(tmp_path, tokenizer_class=None)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="Bert"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(str(tmp_path), ["BertTokenizer"]).encode("a")


def test_code_in_the_folder_is_never_run(tmp_path: Path) -> None:
    save(tmp_path, auto_map={"AutoTokenizer": ["evil.Evil", None]}, tokenizer_class="Evil")
    trace = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(trace)!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ModelError, match="auto_map"):
        load_tokenizer(str(tmp_path), ["Evil"])
    assert not trace.exists()


def test_missing_and_malformed_files_are_one_line_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nowhere"))
    save(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ModelError) as caught:
        load_tokenizer(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
