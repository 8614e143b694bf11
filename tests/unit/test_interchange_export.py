"""From checkpoints of any number of ranks to a Hugging Face folder: the policy of the run, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_core.checkpoint.digest import policy_digest
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import DamagedError, InputError
from verl_core.interchange.export import export_model
from verl_core.protocols import CheckpointReader
from verl_core.types import CheckpointState, RunIdentity, TensorChunk
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine
from verl_core_storage.local import LocalStorage

from tests.support import made
from tests.support.models import context_of, random_model


class Saved:
    """A checkpoint of a model's engine, its actor cut into pieces for a number of ranks."""

    def __init__(self, folder: Path, ranks: int = 1, dtype: str = "float32", digest: str = "") -> None:
        self.model = random_model(folder / "model", "qwen3", tie_word_embeddings=True)
        (folder / "model/tokenizer.json").write_text("{}")
        engine = FsdpEngine(FsdpConfig(), context_of(self.model, dtype=dtype))
        self.digest = policy_digest(engine.sums())
        self.chunks = list(engine.shards("actor"))
        files = {f"actor/{name}": content for name, content in engine.files().items()}
        checkpointer = ShardedCheckpointer(LocalStorage(str(folder / "saves")), RunIdentity("run", 0, 1))
        state = CheckpointState(
            step=4,
            branch=0,
            attempt=1,
            tensors={"actor": self._cut(ranks), "optimizer": [[made.pieces("m", np.ones((2, 2), np.float32), 1)[0]]]},
            files={**files, "config.yaml": b""},
            facts={"policy_digest": digest or self.digest},
        )
        self.ref = checkpointer.save(state)
        self.reader: CheckpointReader = checkpointer.open(self.ref)

    def _cut(self, ranks: int) -> list[list[TensorChunk]]:
        if ranks == 1:
            return [self.chunks]
        items = {"F32": np.uint32, "BF16": np.uint16}
        cut: list[list[TensorChunk]] = [[] for _ in range(ranks)]
        for chunk in self.chunks:
            whole = np.frombuffer(chunk.data, items[chunk.dtype]).reshape(chunk.shape)
            for rank, piece in enumerate(made.pieces(chunk.name, whole, ranks, chunk.dtype)):
                cut[rank].append(piece)
        return cut


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_c17_the_reloaded_export_is_the_policy_of_the_run(tmp_path: Path, ranks: int, dtype: str) -> None:
    saved = Saved(tmp_path, ranks, dtype)
    done = export_model(saved.reader, tmp_path / "out", saved.digest)
    assert (done.policy_digest, done.tensors) == (saved.digest, len(saved.chunks))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.dtype == getattr(torch, dtype)
    assert (
        policy_digest(FsdpEngine(FsdpConfig(), context_of(str(tmp_path / "out"), dtype=dtype)).sums()) == saved.digest
    )
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {path.name for path in Path(saved.model).iterdir()}


def test_an_existing_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="is there already"):
        export_model(saved.reader, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="writable folder"):
        export_model(Saved(tmp_path).reader, tmp_path / "file" / "out")


@pytest.mark.parametrize(("saved_as", "known"), [("sums:other", ""), ("", "sums:other")])
def test_c17_a_checkpoint_that_is_another_policy_than_it_says_is_not_exported(
    tmp_path: Path, saved_as: str, known: str
) -> None:
    saved = Saved(tmp_path, digest=saved_as)
    with pytest.raises(DamagedError, match="sums:other"):
        export_model(saved.reader, tmp_path / "out", known)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir() if "draft" in path.name] == []


def test_an_export_that_is_killed_leaves_no_folder_and_the_next_one_sweeps_up(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (tmp_path / ".out.999999999.draft").mkdir()
    export_model(saved.reader, tmp_path / "out", saved.digest)
    assert [path.name for path in tmp_path.iterdir() if "draft" in path.name] == []
