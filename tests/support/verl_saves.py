"""Small checkpoints in the layout of verl's FSDP runs: real DTensors of any number of ranks, made in one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM
from verl_core.interchange.placement import chunk_of

from tests.support.models import random_model

Tensors = Mapping[str, torch.Tensor]
State = dict[str, Any]
STEP = 3


@contextmanager
def as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Torch believes to be this rank of a group; nothing is sent anywhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def save(
    folder: Path,
    tensors: Tensors,
    *,
    ranks: int = 2,
    replicas: int = 1,
    buffers: tuple[str, ...] = (),
    parameters: Tensors | None = None,
    change: Callable[[int, State, State], None] = lambda rank, model, optimizer: None,
) -> Path:
    """``global_step_N/actor`` of a number of ranks, in ``replicas`` groups that hold the same.

    ``parameters``, in their order, get moments made from them. ``change`` may spoil a rank's states before they are
    written.
    """
    folder.mkdir(parents=True)
    for rank in range(ranks):
        with as_rank(rank, ranks):
            mesh = _mesh(ranks, replicas)
            model = {n: t if n in buffers or mesh is None else _cut(t, mesh) for n, t in tensors.items()}
            optimizer = _optimizer(parameters or {}, mesh)
            change(rank, model, optimizer)
            ending = f"world_size_{ranks}_rank_{rank}.pt"
            torch.save(model, folder / f"model_{ending}")
            torch.save({"lr_scheduler": None, "rng": {}}, folder / f"extra_state_{ending}")
            if parameters is not None:
                torch.save(optimizer, folder / f"optim_{ending}")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    return folder


class Origin:
    """A model, its tensors as a state dict has them (tied ones twice), and its parameters in order."""

    def __init__(self, folder: Path, kind: str = "qwen3", **changes: Any) -> None:
        self.path = random_model(folder, kind, **changes)
        model = AutoModelForCausalLM.from_pretrained(self.path)
        self.state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self.parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}

    def save(self, actor: Path, **options: Any) -> Path:
        folder = save(actor, self.state, parameters=self.parameters, **options)
        put_beside(folder, self.path)
        return folder


def put_beside(folder: Path, model: str | Path) -> None:
    """``huggingface/``: everything of a model folder but its weights."""
    shutil.copytree(model, folder / "huggingface", ignore=shutil.ignore_patterns("*.safetensors*"))


def _mesh(ranks: int, replicas: int) -> DeviceMesh | None:
    """One rank alone has no mesh: its tensors are plain."""
    if ranks == 1:
        return None
    if replicas == 1:
        return init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    return init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("ddp", "fsdp"))


def _cut(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """This rank's piece of a whole tensor, cut along its first dimension."""
    placements: list[Placement] = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    at = mesh.get_coordinate()
    assert at is not None
    box = chunk_of(tuple(tensor.shape), tuple(mesh.shape), at, [None] * (mesh.ndim - 1) + [0])
    local = tensor[tuple(slice(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))].clone()
    stride = torch.empty(tensor.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=stride)


def _optimizer(parameters: Tensors, mesh: DeviceMesh | None) -> State:
    def put(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if mesh is None else _cut(tensor, mesh)

    entries = {
        number: {"step": torch.tensor(float(STEP)), "exp_avg": put(t / 7), "exp_avg_sq": put(t * t)}
        for number, t in enumerate(parameters.values())
    }
    return {"state": entries, "param_groups": [{"lr": 1e-3, "params": list(entries)}]}
