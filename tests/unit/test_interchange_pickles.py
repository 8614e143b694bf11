"""Rank files are pickles: nothing in them is run, whatever they name."""

from __future__ import annotations

import datetime
import functools
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from verl_core.errors import DamagedError, InputError
from verl_core.interchange.pickles import ShardedValue, load_rank_file

from tests.support.verl_saves import as_rank, save


class Hostile:
    """Pickles itself as a call."""

    def __init__(self, function: object, *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self._call


def touch(path: str) -> None:
    Path(path).touch()


def test_a_sharded_tensor_is_read_without_a_group_and_keeps_its_piece(tmp_path: Path) -> None:
    whole = torch.arange(10.0).reshape(5, 2)
    folder = save(tmp_path / "actor", {"w": whole}, ranks=2)
    parts = [load_rank_file(folder / f"model_world_size_2_rank_{rank}.pt")["w"] for rank in range(2)]
    assert all(isinstance(part, ShardedValue) and tuple(part.shape) == (5, 2) for part in parts)
    assert torch.equal(torch.cat([part.__dict__["_local_tensor"] for part in parts]), whole)


@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(eval, "open('x')"),
        Hostile(getattr, torch.Tensor, "apply_"),
        Hostile(functools.partial, print),
        Hostile(torch.jit.load, "x.pt"),
        Hostile(datetime.date, 2000, 1, 1),
        np.random.default_rng(0).random(3),
    ],
    ids=["eval", "getattr", "partial", "torch.jit.load", "date", "numpy"],
)
def test_a_file_that_names_anything_but_tensors_is_refused(tmp_path: Path, hostile: object) -> None:
    torch.save({"w": torch.ones(2), "x": hostile}, tmp_path / "rank.pt")
    with pytest.raises(InputError, match=r"refused|cannot be read") as caught:
        load_rank_file(tmp_path / "rank.pt")
    assert "add_safe_globals" not in str(caught.value), "it must not advise to allow what it refused"


def test_nothing_is_called_while_a_file_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "called"
    torch.save({"w": Hostile(touch, str(mark))}, tmp_path / "rank.pt")
    with pytest.raises(InputError, match=r"touch"):
        load_rank_file(tmp_path / "rank.pt")
    assert not mark.exists()


def test_what_other_libraries_have_allowed_is_refused_here_and_stays_allowed_there(tmp_path: Path) -> None:
    torch.save({"w": datetime.date(2000, 1, 1)}, tmp_path / "rank.pt")
    with torch.serialization.safe_globals([datetime.date]):
        before = set(map(str, torch.serialization.get_safe_globals()))
        with pytest.raises(InputError, match="date"):
            load_rank_file(tmp_path / "rank.pt")
        assert set(map(str, torch.serialization.get_safe_globals())) == before


def test_the_environment_cannot_turn_the_restriction_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"w": Hostile(touch, str(tmp_path / "called"))}, tmp_path / "rank.pt")
    with pytest.raises(InputError):
        load_rank_file(tmp_path / "rank.pt")
    assert not (tmp_path / "called").exists()


def test_a_stand_in_computes_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path / "actor", {"w": torch.ones(4, 2)}, ranks=2)
    value = load_rank_file(folder / "model_world_size_2_rank_0.pt")["w"]
    assert isinstance(value, torch.Tensor)
    with pytest.raises(InputError, match="computed with"):
        value + 1


def test_a_flipped_byte_in_the_weights_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rank.pt"
    torch.save(OrderedDict(w=torch.full((300,), 7.0)), path)
    data = bytearray(path.read_bytes())
    at = data.index(np.full(8, 7.0, np.float32).tobytes()) + 5
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="checksum"):
        load_rank_file(path)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_an_error_that_names_it(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "rank.pt"
    torch.save({"w": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(InputError, match=r"rank\.pt: cannot be read"):
        load_rank_file(path)


def test_an_archive_without_tensors_and_a_bare_tensor_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("hello.txt", "hello")
    torch.save(torch.ones(2), tmp_path / "bare.pt")
    for name in ("other.pt", "bare.pt"):
        with pytest.raises(InputError, match=name):
            load_rank_file(tmp_path / name)


def test_a_tensor_saved_on_another_device_comes_to_the_cpu(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    path = tmp_path / "rank.pt"
    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        torch.save({"w": DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False)}, path)
    moved = tmp_path / "cuda.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(moved, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith("data.pkl"):  # "cpu" as a pickled text, here and there, is the device
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            new.writestr(info.filename, data)
    value = load_rank_file(moved)["w"]
    assert isinstance(value, ShardedValue)
    assert value.__dict__["_local_tensor"].device.type == "cpu"
