"""Settings for all tests: one thread, no network, hypothesis without clocks; GPU tests are skipped where none is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from tests.services.fixtures import faulty_mount, oss_server, rclone, s3_env, s3_proxy, seaweed  # noqa: F401 - fixtures for all folders
from tests.support.dists import Install, write_distribution
from tests.support.tiny import Tiny

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any test imports torch
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A busy machine is slow now and then: the time of one example says nothing.
settings.register_profile("verl-core", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("verl-core")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a start sets in its process (visible GPUs, NCCL) is gone before the next test."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Model, data and configs of a tiny real run."""
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def undisturbed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eight steps."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    tiny.trainer(run, 8).run()
    return run


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a real distribution: metadata, entry points and modules on disk, found by importlib."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return partial(write_distribution, folder)
