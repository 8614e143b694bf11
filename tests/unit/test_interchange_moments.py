"""AdamW's moments out of verl's checkpoints: with the right parameter, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from verl_core.errors import ModelError
from verl_core.interchange.verl_fsdp import import_model
from verl_core.interchange.warm_start import moments_beside
from verl_core.types import Slice
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine

from tests.support import verl_saves
from tests.support.models import context_of
from tests.support.verl_saves import Origin


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Origin:
    return Origin(tmp_path_factory.mktemp("origin") / "model", tie_word_embeddings=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_begins_with_the_moments_and_the_single_precision_weights(
    origin: Origin, tmp_path: Path, dtype: str
) -> None:
    import_model(origin.save(tmp_path / "actor"), tmp_path / "out")
    engine = FsdpEngine(FsdpConfig(), context_of(str(tmp_path / "out"), dtype=dtype))
    found = {
        chunk.name: torch.frombuffer(bytearray(chunk.data), dtype=torch.uint8) for chunk in engine.shards("optimizer")
    }
    assert int(found["step"].view(torch.int64)) == verl_saves.STEP
    for name, tensor in origin.parameters.items():
        assert torch.equal(found[f"exp_avg.{name}"].view(torch.float32), (tensor / 7).reshape(-1))
        if dtype == "bfloat16":
            assert torch.equal(found[f"master.{name}"].view(torch.float32), tensor.reshape(-1))


def test_a_folder_without_moments_changes_nothing(origin: Origin, tmp_path: Path) -> None:
    assert moments_beside(origin.path) is None
    import_model(origin.save(tmp_path / "actor"), tmp_path / "out", optimizer=False)
    assert moments_beside(str(tmp_path / "out")) is None


def test_any_piece_of_a_moment_can_be_read(origin: Origin, tmp_path: Path) -> None:
    import_model(origin.save(tmp_path / "actor"), tmp_path / "out")
    read = moments_beside(str(tmp_path / "out"))
    assert read is not None
    name = "model.layers.0.mlp.up_proj.weight"
    chunk = read(Slice(f"exp_avg.{name}", (3, 0), (5, 32)))
    assert (chunk.dtype, chunk.global_shape, chunk.offset, chunk.shape) == ("F32", (64, 32), (3, 0), (5, 32))
    wanted = (origin.parameters[name] / 7)[3:8]
    assert torch.equal(torch.frombuffer(bytearray(chunk.data), dtype=torch.float32).reshape(5, 32), wanted)
    with pytest.raises(ModelError, match=r"no tensor exp_avg\.nothing"):
        read(Slice("exp_avg.nothing", (0,), (1,)))


def two_groups(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    numbers = optimizer["param_groups"][0]["params"]
    optimizer["param_groups"] = [{"params": numbers[:3]}, {"params": numbers[3:]}]


def another_optimizer(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    optimizer["state"] = {number: {"momentum_buffer": entry["exp_avg"]} for number, entry in optimizer["state"].items()}


def a_frozen_parameter(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    del optimizer["state"][2]


def uneven_steps(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    optimizer["state"][2]["step"] += 1


def another_order(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    states = optimizer["state"]
    states[0], states[1] = states[1], states[0]


def one_less(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
    optimizer["param_groups"][0]["params"].pop()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (two_groups, "2 groups"),
        (another_optimizer, "momentum_buffer"),
        (a_frozen_parameter, "keeps nothing"),
        (uneven_steps, "3 to 4 updates"),
        (another_order, "do not belong to"),
        (one_less, "FSDP1 flattens"),
    ],
)
def test_doubtful_moments_are_left_behind_with_the_reason(
    origin: Origin, tmp_path: Path, change: Any, reason: str
) -> None:
    done = import_model(origin.save(tmp_path / "actor", change=change), tmp_path / "out")
    assert done.moments is None
    assert reason in done.no_moments
    assert not (tmp_path / "out" / "optimizer").exists()
    assert (tmp_path / "out" / "model.safetensors").exists(), "the weights are there all the same"


def test_groups_that_name_their_parameters_need_no_order(origin: Origin, tmp_path: Path) -> None:
    names = list(origin.parameters)

    def named(rank: int, model: verl_saves.State, optimizer: verl_saves.State) -> None:
        states = optimizer["state"]
        states[0], states[1] = states[1], states[0]
        optimizer["param_groups"] = [
            {"params": [0, 1], "param_names": [names[1], names[0]]},
            {"params": list(range(2, len(names))), "param_names": names[2:]},
        ]

    done = import_model(origin.save(tmp_path / "actor", change=named), tmp_path / "out")
    assert done.moments is not None
    assert torch.equal(done.moments.tensors[f"exp_avg.{names[0]}"], origin.parameters[names[0]] / 7)


def test_moments_without_all_ranks_are_left_behind(origin: Origin, tmp_path: Path) -> None:
    folder = origin.save(tmp_path / "actor")
    (folder / "optim_world_size_2_rank_1.pt").unlink()
    done = import_model(folder, tmp_path / "out")
    assert done.no_moments == "there is no optim_world_size_2_rank_1.pt"


def test_what_was_written_is_read_by_the_usual_library(origin: Origin, tmp_path: Path) -> None:
    import_model(origin.save(tmp_path / "actor"), tmp_path / "out")
    found = load_file(tmp_path / "out/optimizer/moments.safetensors")
    assert len(found) == 2 * len(origin.parameters) + 1
    assert int(found["step"]) == verl_saves.STEP
