"""Two ranks that train a model under FSDP as verl does and save in its layout: ``python -m … MODEL FOLDER``.

There will be ``FOLDER/KIND/actor`` for each kind: ``fsdp2``, and ``fsdp1`` with or without a device mesh
(``fsdp1-mesh``), which decides what kind of sharded tensor torch saves. Rank 0 writes the whole tensors, gathered by
torch itself, to ``reference.safetensors``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as Wrapped
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from transformers import AutoModelForCausalLM

RANKS, STEPS = 2, 3
KINDS = ("fsdp2", "fsdp1-mesh", "fsdp1")


def train(rank: int, model_path: str, folder: str, kind: str) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model: Any = AutoModelForCausalLM.from_pretrained(model_path)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    if kind == "fsdp2":
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        options: dict[str, Any] = {"device_mesh": mesh} if kind == "fsdp1-mesh" else {}
        model = Wrapped(model, device_id=torch.device("cpu"), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(STEPS):
        ids = torch.randint(3, 40, (2, 6))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    reference: dict[str, torch.Tensor] = {}
    if kind == "fsdp2":
        for name, value in model.state_dict().items():
            reference[name] = value.full_tensor().clone()
        for name, parameter in model.named_parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                moment = optimizer.state[parameter][key]
                assert isinstance(moment, DTensor)
                reference[f"{key}.{name}"] = moment.full_tensor().clone()
    else:
        with Wrapped.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            reference = {name: value.clone() for name, value in model.state_dict().items()}
        Wrapped.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    ending = f"world_size_{RANKS}_rank_{rank}.pt"
    torch.save(model.state_dict(), f"{folder}/model_{ending}")
    torch.save(optimizer.state_dict(), f"{folder}/optim_{ending}")
    torch.save({"lr_scheduler": None, "rng": {"cpu": torch.get_rng_state()}}, f"{folder}/extra_state_{ending}")
    if rank == 0:
        save_file(reference, f"{folder}/reference.safetensors")
        version = {"FSDP_version": 2 if kind == "fsdp2" else 1, "world_size": RANKS}
        Path(folder, "fsdp_config.json").write_text(json.dumps(version))
    dist.destroy_process_group()


if __name__ == "__main__":
    for each in KINDS:
        place = Path(sys.argv[2], each, "actor")
        place.mkdir(parents=True)
        start_processes(train, (sys.argv[1], str(place), each), RANKS, start_method="fork")  # type: ignore[no-untyped-call]
