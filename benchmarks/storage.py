"""Group ``storage``: commits and uploads on a real S3 server against the client's own calls, a start-up scan of 100,000
batches against one bare listing, and commits by 32 writers on the local disk against its syncs.

Ours and theirs take turns; figures are medians, ratios ours ÷ theirs.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import fsspec
import numpy as np
from verl_core.rollout.objects import ObjectWriter
from verl_core.rollout.writer import AtomicWriter
from verl_core.types import BatchKey, BatchSpec, BuildContext, RunIdentity, Sample
from verl_core_storage.local import LocalStorage
from verl_core_storage.s3 import S3Config, build_s3

from tests.services.proxy import FaultProxy
from tests.services.seaweed import Seaweed

PROMPTS, GROUP, TOKENS = 32, 8, 64  # of a batch: about 0.4 MB
COMMITS, LATENCY_S = 60, 0.03
UPLOAD_MIB, UPLOADS = 64, 7
SCANNED, SCANS = 100_000, 7
WRITERS, EACH, SYNCS = 32, 40, 500
_FORK = mp.get_context("fork")  # begins at once
IDENTITY = RunIdentity("run", 0, 0)


def measure() -> dict[str, float]:
    """See ``benchmarks/README.md`` for the keys."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return {**_group(folder / "group"), **_scan(folder / "scan"), **_on_s3(folder / "s3")}


def _on_s3(folder: Path) -> dict[str, float]:
    server = Seaweed(folder)
    try:
        server.start()
        server.make_bucket("runs")
        proxy = FaultProxy(server.port)
        proxy.set("latency", seconds=LATENCY_S)
        os.environ.update(server.environ() | {"AWS_ENDPOINT_URL": proxy.url})
        far = _commits(COMMITS // 4)
        proxy.close()
        os.environ.update(server.environ())
        near = _commits(COMMITS)
        return {
            "s3_commit_ratio": near[0] / near[1],
            "s3_commit_limit": 1.15 + near[2] / near[1],  # 1.15 times the plain PUTs, and one round trip
            "s3_commit_ratio_30ms": far[0] / far[1],
            "s3_commit_limit_30ms": 1.15 + far[2] / far[1],
            "s3_upload_ratio": _uploads(),
        }
    finally:
        server.kill()


def _commits(rounds: int) -> tuple[float, float, float]:
    """Seconds of a commit, of the plain PUTs of its three objects by s3fs one after another, and of a round trip."""
    numbers, batch = count(), _batch()
    storage = build_s3(S3Config(), BuildContext(uri="s3://runs/ours"))
    plain = fsspec.filesystem("s3", skip_instance_cache=True)
    writer = ObjectWriter(storage, IDENTITY)

    def commit() -> Callable[[], object]:
        spec = BatchSpec(BatchKey(0, next(numbers)), 0, tuple(range(PROMPTS)))
        staged = writer.stage(spec, batch, worker="w", seed=0)
        return lambda: writer.commit(staged)

    def puts() -> Callable[[], object]:
        spec = BatchSpec(BatchKey(1, next(numbers)), 0, tuple(range(PROMPTS)))
        staged = writer.stage(spec, batch, worker="w", seed=0)
        files = {f"runs/plain/{spec.key}/{name}": data for name, data in {**staged.files, "SUCCESS": b""}.items()}
        return lambda: [plain.pipe_file(path, data) for path, data in files.items()]

    def round_trip() -> Callable[[], object]:
        return lambda: plain.cat_file("runs/ours/one")

    storage.put("one", b"1")
    ours, theirs, trip = _medians([commit, puts, round_trip], rounds)
    return ours, theirs, trip


def _uploads() -> float:
    """Throughput of a large object in parts, ours ÷ that of s3fs."""
    data, numbers = os.urandom(UPLOAD_MIB << 20), count()
    storage = build_s3(S3Config(), BuildContext(uri="s3://runs/up"))
    plain = fsspec.filesystem("s3", skip_instance_cache=True)
    ours, theirs = _medians(
        [
            lambda: lambda: storage.put(f"ours-{next(numbers)}", data),
            lambda: lambda: plain.pipe_file(f"runs/up/theirs-{next(numbers)}", data),
        ],
        UPLOADS,
    )
    return theirs / ours


def _scan(folder: Path) -> dict[str, float]:
    """The scan of a start that knows its batches, ÷ a bare walk over the same tree that looks at each file's facts."""
    for number in range(SCANNED):
        batch = folder / f"epoch_{number // 10_000}" / f"batch_{number}"
        batch.mkdir(parents=True)
        for name in ("SUCCESS", "meta.json", "samples.jsonl"):
            (batch / name).touch()
    known = {BatchKey(number // 10_000, number) for number in range(SCANNED)}
    writer = AtomicWriter(LocalStorage(str(folder)), IDENTITY)
    ours, theirs = _medians(
        [lambda: lambda: list(writer.scan(known)), lambda: lambda: sum(1 for _ in LocalStorage(str(folder)).list())],
        SCANS,
    )
    return {"scan_100k_ratio": ours / theirs, "scan_100k_s": ours}


def _group(folder: Path) -> dict[str, float]:
    """Commits a second by 32 processes on one run, ÷ appends of 4 KiB a second by one, each synced."""
    folder.mkdir()
    workers = [_FORK.Process(target=_commit_many, args=(folder / "rollouts", number)) for number in range(WRITERS)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    commits = WRITERS * EACH / (time.perf_counter() - begin)
    with open(folder / "plain", "ab", buffering=0) as file:
        begin = time.perf_counter()
        for _ in range(SYNCS):
            file.write(bytes(4096))
            os.fsync(file.fileno())
        syncs = SYNCS / (time.perf_counter() - begin)
    return {"commit_group_ratio": commits / syncs, "commits_per_s": commits, "syncs_per_s": syncs}


def _commit_many(folder: Path, worker: int) -> None:
    writer, samples = AtomicWriter(LocalStorage(str(folder)), IDENTITY), _batch(1, 1)
    for number in range(EACH):
        spec = BatchSpec(BatchKey(0, worker * EACH + number), 0, (0,))
        writer.commit(writer.stage(spec, samples, worker=f"w{worker}", seed=0))


def _batch(prompts: int = PROMPTS, n: int = GROUP) -> Sequence[Sample]:
    dice = np.random.default_rng(0)
    return [
        Sample(
            row=row,
            index=index,
            seed=row * n + index,
            prompt="a prompt of some words\n" * 4,
            response="words " * TOKENS,
            prompt_ids=dice.integers(0, 30_000, TOKENS, dtype=np.int32),
            response_ids=dice.integers(0, 30_000, TOKENS, dtype=np.int32),
            logprobs=dice.random(TOKENS, dtype=np.float32),
            finish="stop",
            reward=0.5,
        )
        for row in range(prompts)
        for index in range(n)
    ]


def _medians(made: Sequence[Callable[[], Callable[[], object]]], rounds: int) -> list[float]:
    """Median seconds of each; what is timed is what ``made`` returns. One turn each to warm up."""
    times: list[list[float]] = [[] for _ in made]
    for number in range(rounds + 1):
        for make, seconds in zip(made, times, strict=True):
            call = make()
            begin = time.perf_counter()
            call()
            if number:
                seconds.append(time.perf_counter() - begin)
    return [statistics.median(seconds) for seconds in times]
