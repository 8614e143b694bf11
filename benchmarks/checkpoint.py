"""Group ``checkpoint``: saves of a model of 135 million parameters with its AdamW state, 1.6 GB, against ``torch.save``
with fsync and ``torch.distributed.checkpoint``.

What a step waits for is the copy of the state; the write is the writer thread's, hashes included, durable when it ends.
All take turns, each on a disk that has nothing else to do; figures are medians, ratios ours ÷ theirs. ``raw`` is the
same number of zeros past the page cache, without a hash. Files lie below ``build/``, on the disk of the clone.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from transformers import LlamaConfig, LlamaForCausalLM
from verl_core.algorithms.flow import TrainRoles, flow_of
from verl_core.algorithms.grpo import GrpoConfig, build_grpo
from verl_core.checkpoint.sharded import ShardedCheckpointer, ShardedConfig
from verl_core.rollout.handover import HandOver
from verl_core.rollout.writer import AtomicWriter
from verl_core.types import BuildContext, CheckpointState, RunIdentity, Slice, TensorChunk
from verl_core.workers import RankState, TrainWorker
from verl_core.writes import WriteQueue
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine
from verl_core_storage import direct
from verl_core_storage.local import LocalStorage

ROUNDS = 5
IDENTITY = RunIdentity("run", 0, 0)


def measure() -> dict[str, float]:
    """See ``benchmarks/README.md`` for the keys."""
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build") as name, _alone():
        folder = Path(name).absolute()
        engine = _engine(folder / "model")
        worker = _worker(engine)
        plain = {f"{part} {key}": value for part in ("actor", "optimizer") for key, value in _tensors(engine, part)}
        calls: dict[str, Callable[[], float]] = {
            "stall": lambda: _timed(lambda: _state(worker)),
            "write": lambda: _ours(worker, folder / "ours", read_back=False),
            "whole": lambda: _ours(worker, folder / "ours", read_back=True),
            "torch": lambda: _timed(lambda: _torch_save(plain, folder / "plain.pt")),
            "dcp": lambda: _timed(lambda: save(plain, checkpoint_id=folder / "dcp")),
            "dcp_async": lambda: _dcp_async(plain, folder / "dcp"),
            "raw": lambda: _timed(lambda: _raw(sum(t.nbytes for t in plain.values()), folder / "raw")),
        }
        seconds: dict[str, list[float]] = {key: [] for key in calls}
        for number in range(ROUNDS + 1):
            for key, call in calls.items():
                took = call()
                if number:
                    seconds[key].append(took)
                shutil.rmtree(folder / "ours", ignore_errors=True)
                shutil.rmtree(folder / "dcp", ignore_errors=True)
                os.sync()
    median = {key: statistics.median(found) for key, found in seconds.items()}
    return {
        "async_stall_vs_torch_save": median["stall"] / median["torch"],
        "async_stall_vs_dcp": median["stall"] / median["dcp_async"],
        "durable_write_vs_torch_save": median["write"] / median["torch"],
        "durable_write_vs_dcp": median["write"] / median["dcp"],
        "read_back_save_vs_torch_save": median["whole"] / median["torch"],
        **{f"checkpoint_{key}_s": value for key, value in median.items()},
    }


@contextmanager
def _alone() -> Iterator[None]:
    """The process group that ``torch.distributed.checkpoint`` wants: this process."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _engine(folder: Path) -> FsdpEngine:
    """Random weights and moments: what is copied and written is there, and in no cache."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    engine = FsdpEngine(FsdpConfig(), BuildContext(model_path=str(folder)))
    dice = np.random.default_rng(0)

    def drawn(piece: Slice) -> TensorChunk:
        if piece.name == "step":
            return TensorChunk(piece.name, "I64", (), (), (), np.int64(1).tobytes())
        data = dice.random(piece.shape, dtype=np.float32).tobytes()
        return TensorChunk(piece.name, "F32", piece.shape, piece.offset, piece.shape, data)

    engine.load("optimizer", drawn)
    return engine


def _tensors(engine: FsdpEngine, component: str) -> Iterator[tuple[str, torch.Tensor]]:
    for chunk in engine.shards(component):
        dtype = torch.int64 if chunk.dtype == "I64" else torch.float32
        yield chunk.name, torch.frombuffer(bytearray(chunk.data), dtype=dtype).reshape(chunk.shape)


def _worker(engine: FsdpEngine) -> TrainWorker:
    algorithm, writer = build_grpo(GrpoConfig(), BuildContext()), AtomicWriter(LocalStorage("/nowhere"), IDENTITY)
    store = HandOver(writer, WriteQueue(patience_s=0))
    return TrainWorker("train-0", flow_of(algorithm), TrainRoles(engine, algorithm), store, {})


def _state(worker: TrainWorker) -> RankState:
    """What a step waits for."""
    return cast(RankState, worker.call("state", None))


def _ours(worker: TrainWorker, folder: Path, *, read_back: bool) -> float:
    state = _state(worker)
    tensors = {name: [chunks] for name, chunks in state.tensors.items()}
    whole = CheckpointState(1, 0, 0, tensors, state.files, {"policy_digest": state.policy_digest})
    checkpointer = ShardedCheckpointer(LocalStorage(str(folder)), IDENTITY, ShardedConfig(read_back=read_back))
    return _timed(lambda: checkpointer.save(whole))


def _torch_save(state: dict[str, torch.Tensor], path: Path) -> None:
    torch.save(state, path)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _raw(size: int, path: Path) -> None:
    LocalStorage(str(path.parent)).write(path.name, (bytes(direct.LARGE) for _ in range(size // direct.LARGE)))


def _dcp_async(state: dict[str, torch.Tensor], folder: Path) -> float:
    """Until it gives control back; then wait for its end."""
    begin = time.perf_counter()
    saved = async_save(state, checkpoint_id=folder)
    stall = time.perf_counter() - begin
    saved.result()  # type: ignore[union-attr]
    return stall


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
