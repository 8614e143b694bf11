"""The preflight as a whole: what it asks in which order, and when the all-reduce is timed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from verl_core.config import read_config
from verl_core.errors import WorkerError
from verl_core.health import start
from verl_core.health.all_reduce import Measured
from verl_core.health.start import Preflight, preflight
from verl_core.inputs import storage_at
from verl_core.plugins import load

from tests.support import fake_nvml
from tests.support.fake_nvml import uuid
from tests.support.tiny import Tiny

POOLS = ("distributed.train_gpus=2", "training.device=cpu", "distributed.nccl.NCCL_IB_SL=3")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], str]]:
    """The all-reduces that were asked for: the GPUs, and a variable of NCCL. 40 GB/s, on a node of four GPUs."""
    calls: list[tuple[Sequence[str], str]] = []

    def measure(uuids: Sequence[str], environ: Mapping[str, str], *, timeout_s: float) -> Measured:
        calls.append((uuids, environ["NCCL_IB_SL"]))
        return Measured(len(uuids), 64, 0.002, 40.0)

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    monkeypatch.setenv("FAKE_NVML", fake_nvml.node(4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(start, "measure", measure)
    return calls


def asked(tiny: Tiny, *overrides: str, when: str = "check", run_dir: Path | None = None) -> Preflight:
    loaded, plugins = read_config(str(tiny.config(8)), overrides), load([])
    open_at = partial(storage_at, plugins, loaded.config)
    return preflight(loaded, plugins, None if run_dir is None else str(run_dir), open_at, when)  # type: ignore[arg-type]


def test_an_all_reduce_over_the_training_pool_is_timed_by_check(
    tiny: Tiny, timed: list[tuple[Sequence[str], str]]
) -> None:
    report = asked(tiny, *POOLS).report
    assert timed == [((uuid(0), uuid(1)), "3")]
    assert ("nccl", "all-reduce of 64 MiB over 2 GPUs: 2.00 ms, 40.0 GB/s bus bandwidth") in report.facts
    assert report.errors == ()


@pytest.mark.parametrize(
    ("overrides", "when", "times"),
    [
        (POOLS, "start", 0),
        ((*POOLS, "distributed.nccl.measure=start"), "start", 1),
        ((*POOLS, "distributed.nccl.measure=start"), "check", 1),
        ((*POOLS, "distributed.nccl.measure=never"), "check", 0),
        ((*POOLS, "distributed.train_gpus=1"), "check", 0),
        ((*POOLS, "rollout.n=1"), "check", 0),
    ],
)
def test_it_is_timed_when_it_is_wanted_and_nothing_else_is_wrong(
    tiny: Tiny, timed: list[tuple[Sequence[str], str]], overrides: Sequence[str], when: str, times: int
) -> None:
    asked(tiny, *overrides, when=when)
    assert len(timed) == times


def test_a_slow_all_reduce_is_a_warning(tiny: Tiny, timed: object) -> None:
    report = asked(tiny, *POOLS, "distributed.nccl.min_bus_gb_per_s=100").report
    assert report.errors == ()
    assert "40.0 GB/s is less than wanted" in [warning.what for warning in report.warnings]


def test_an_all_reduce_that_fails_is_an_error(tiny: Tiny, timed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Measured:
        raise WorkerError("no end within 60 s", where="all-reduce over 2 ranks", remedy="look")

    monkeypatch.setattr(start, "measure", fails)
    [error] = asked(tiny, *POOLS).report.errors
    assert error.what == "no end within 60 s"


def test_a_bound_gpu_that_torch_does_not_see_is_an_error_and_the_environment_is_set_before_it_is_asked(
    tiny: Tiny, timed: object
) -> None:
    checked = asked(tiny, "distributed.train_gpus=1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid(0)
    assert checked.placement.train == (uuid(0),)
    assert [(error.where, error.what) for error in checked.report.errors] == [
        ("training.device", "no CUDA device is available")
    ]


def test_the_gpus_of_the_run_are_taken_from_its_folder(tiny: Tiny, timed: object, tmp_path: Path) -> None:
    (tmp_path / "orchestration.json").write_text(f'{{"devices": {{"train": ["{uuid(3)}"], "rollout": ["{uuid(2)}"]}}}}')
    pools = ("distributed.train_gpus=1", "distributed.rollout_gpus=1", "training.device=cpu")
    found = asked(tiny, *pools, run_dir=tmp_path).placement
    assert (found.train, found.rollout) == ((uuid(3),), (uuid(2),))
    for text in ("", "{}", "[]", '{"devices": 3}'):
        (tmp_path / "orchestration.json").write_text(text)
        del os.environ["CUDA_VISIBLE_DEVICES"]  # as another process finds it
        assert asked(tiny, *pools, run_dir=tmp_path).placement.train == (uuid(0),)


def test_without_pools_the_gpus_that_are_here_are_shown(tiny: Tiny, timed: object, tmp_path: Path) -> None:
    report = asked(tiny, run_dir=tmp_path / "run").report
    assert [text.partition(" (")[0] for check, text in report.facts if check == "gpu"] == [
        f"not bound: {uuid(n)}" for n in range(4)
    ]
    assert ("store", f"{tmp_path}/run: a file system with locks") in report.facts
