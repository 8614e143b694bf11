"""A short all-reduce, timed: one process a GPU, each bound by UUID, as training will be.

``python -m verl_core.health.all_reduce`` is one rank of it. The bus bandwidth is that of nccl-tests: bytes over time,
times 2 (n - 1) / n, which is what each link carries, so that it can be compared whatever the number of GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from ..errors import WorkerError

MIB, ROUNDS, WARM_UP = 64, 8, 2


@dataclass(frozen=True, slots=True)
class Rank:
    """What one process is told."""

    backend: str  # nccl | gloo
    rank: int
    world_size: int
    store: str  # a file that all ranks see
    mib: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    ranks: int
    mib: int
    seconds: float  # of one all-reduce, the median
    bus_gb_per_s: float

    def __str__(self) -> str:
        return (
            f"all-reduce of {self.mib} MiB over {self.ranks} GPUs: {self.seconds * 1000:.2f} ms, "
            f"{self.bus_gb_per_s:.1f} GB/s bus bandwidth"
        )


def measure(
    uuids: Sequence[str],
    environ: Mapping[str, str],
    *,
    timeout_s: float,
    backend: str = "nccl",
    mib: int = MIB,
) -> Measured:
    """Time it over these GPUs. Raises WorkerError when a rank fails or does not end in time; all are ended then."""
    where, end = f"all-reduce over {len(uuids)} ranks", time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="verl-core-") as folder:
        processes = []
        try:
            for number, uuid in enumerate(uuids):
                told = Rank(backend, number, len(uuids), f"{folder}/store", mib, timeout_s)
                command = [sys.executable, "-m", "verl_core.health.all_reduce", json.dumps(asdict(told))]
                own = {**os.environ, **environ, "CUDA_VISIBLE_DEVICES": uuid}
                with (Path(folder) / f"log-{number}").open("wb") as log:
                    processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
            for number, process in enumerate(processes):
                code = process.wait(max(0.1, end - time.monotonic()))
                if code != 0:
                    remedy = "look at NCCL's variables and at the links; NCCL_DEBUG=INFO says more"
                    raise WorkerError(f"rank {number} failed: {_last(folder, number)}", where=where, remedy=remedy)
        except subprocess.TimeoutExpired:
            remedy = "a rank cannot reach another: look at NCCL_SOCKET_IFNAME and NCCL_IB_DISABLE"
            raise WorkerError(f"no end within {timeout_s:g} s", where=where, remedy=remedy) from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return Measured(**json.loads(_last(folder, 0)))


def _last(folder: str, rank: int) -> str:
    lines = (Path(folder) / f"log-{rank}").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _rank(told: Rank) -> Measured:
    """The work of one rank."""
    import torch
    import torch.distributed as dist

    device = torch.device("cuda:0" if told.backend == "nccl" else "cpu")
    if told.backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(
        told.backend,
        init_method=f"file://{told.store}",
        rank=told.rank,
        world_size=told.world_size,
        timeout=timedelta(seconds=told.timeout_s),
    )
    try:
        data = torch.ones(told.mib << 18, dtype=torch.float32, device=device)
        seconds = []
        for _ in range(WARM_UP + ROUNDS):
            data.fill_(1.0)
            _wait(device)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(data)
            _wait(device)
            seconds.append(time.perf_counter() - begin)
            if float(data[0]) != told.world_size or float(data[-1]) != told.world_size:
                raise WorkerError(f"the sum of {told.world_size} ones is {float(data[0])}", where="all-reduce")
    finally:
        dist.destroy_process_group()
    middle = sorted(seconds[WARM_UP:])[ROUNDS // 2]
    share = 2 * (told.world_size - 1) / told.world_size
    return Measured(told.world_size, told.mib, middle, share * (told.mib << 20) / middle / 1e9)


def _wait(device: object) -> None:
    """Until the device has done what it was told: calls return before that."""
    import torch

    if str(device).startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(_rank(Rank(**json.loads(sys.argv[1])))))}\n")
