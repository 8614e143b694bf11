"""Everything else that ships against the suite of its kind; writer and checkpointer on every kind of store."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import verl_core.testing
from verl_core.algorithms.grpo import GrpoConfig, build_grpo
from verl_core.checkpoint.sharded import ShardedConfig, build_sharded
from verl_core.protocols import (
    AlertSink,
    Algorithm,
    Checkpointer,
    MetricSink,
    RecoveryPolicy,
    Reward,
    RolloutWriter,
    Storage,
)
from verl_core.rewards import exact_match, gsm8k
from verl_core.rollout.writer import AtomicConfig, build_atomic
from verl_core.testing import (
    AlertSinkSuite,
    AlgorithmSuite,
    CheckpointerSuite,
    MetricSinkSuite,
    RecoveryPolicySuite,
    RewardSuite,
    RolloutWriterSuite,
)
from verl_core.testing.memory import MemoryFiles, MemoryObjects
from verl_core.types import BuildContext, Prompt
from verl_core_monitoring.log import LogConfig, build_alert_sink, build_metric_sink
from verl_core_recovery.rebuild import RebuildConfig, build_rebuild
from verl_core_recovery.retry import RetryConfig, build_retry
from verl_core_storage.local import LocalStorage
from verl_core_storage.nfs import NfsConfig, build_nfs

from tests.services.fixtures import open_oss, open_s3, prefix

STORES = ("memory_objects", "unconditional", "memory_files", "local", "nfs", "s3", "oss")


@pytest.fixture(params=STORES)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """Opens one empty place again and again, where that can be with a client of its own each time."""
    name, place = str(request.param), prefix()
    if name == "s3":
        request.getfixturevalue("s3_env")
        return lambda: open_s3(f"s3://runs/{place}")
    if name == "oss":
        server = request.getfixturevalue("oss_server")
        return lambda: open_oss(f"oss://runs/{place}", server)
    if name == "nfs":
        return lambda: build_nfs(NfsConfig(), BuildContext(uri=f"nfs://{tmp_path}/root"))
    if name == "local":
        return lambda: LocalStorage(str(tmp_path / "root"))
    if name == "memory_files":
        files = MemoryFiles()
        return lambda: files
    objects = MemoryObjects(conditional_put=name != "unconditional")
    return lambda: objects


class TestWriter(RolloutWriterSuite):
    @pytest.fixture
    def open_writer(self, reopen: Callable[[], Storage]) -> Callable[[str, int], RolloutWriter]:
        return lambda run, attempt: build_atomic(AtomicConfig(), BuildContext(run_id=run, attempt=attempt), reopen())


class TestCheckpointer(CheckpointerSuite):
    @pytest.fixture
    def open_checkpointer(self, reopen: Callable[[], Storage]) -> Callable[[str, int], Checkpointer]:
        return lambda run, attempt: build_sharded(ShardedConfig(), BuildContext(run_id=run, attempt=attempt), reopen())


class TestRetry(RecoveryPolicySuite):
    @pytest.fixture
    def policy(self) -> RecoveryPolicy:
        return build_retry(RetryConfig(), BuildContext())


class TestRebuild(RecoveryPolicySuite):
    @pytest.fixture
    def policy(self) -> RecoveryPolicy:
        return build_rebuild(RebuildConfig(), BuildContext())


class TestExactMatch(RewardSuite):
    @pytest.fixture
    def reward(self) -> Reward:
        return exact_match.build(exact_match.ExactMatchConfig(), BuildContext())

    @pytest.fixture
    def cases(self) -> Sequence[tuple[Prompt, str, float]]:
        prompt = Prompt(0, "sort ba\n", "ab", (1, 2))
        return [(prompt, "ab", 1.0), (prompt, " ab\n", 1.0), (prompt, "ba", 0.0), (prompt, "", 0.0)]


class TestGsm8k(RewardSuite):
    @pytest.fixture
    def reward(self) -> Reward:
        return gsm8k.build(gsm8k.Gsm8kConfig(), BuildContext())

    @pytest.fixture
    def cases(self) -> Sequence[tuple[Prompt, str, float]]:
        prompt = Prompt(0, "1 + 41?", "it is\n#### 42", (1, 2))
        return [(prompt, "#### 42", 1.0), (prompt, "#### 42.0", 1.0), (prompt, "#### 41", 0.0), (prompt, "none", 0.0)]


@pytest.mark.parametrize("normalize", [True, False])
class TestGrpo(AlgorithmSuite):
    @pytest.fixture
    def algorithm(self, normalize: bool) -> Algorithm:
        return build_grpo(GrpoConfig(normalize_std=normalize), BuildContext())


class TestLogAlerts(AlertSinkSuite):
    @pytest.fixture
    def sink(self) -> AlertSink:
        return build_alert_sink(LogConfig(), BuildContext())

    @pytest.fixture
    def received(self, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
        return lambda: "\n".join(record.getMessage() for record in caplog.records)


class TestLogMetrics(MetricSinkSuite):
    @pytest.fixture
    def sink(self, caplog: pytest.LogCaptureFixture) -> MetricSink:
        caplog.set_level(logging.DEBUG, "verl")
        return build_metric_sink(LogConfig(), BuildContext())


def test_the_suites_come_without_pytest_for_those_who_do_not_ask() -> None:
    code = "import sys, verl_core.testing.crash, verl_core.testing.memory; print({'pytest'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
    for name in verl_core.testing.__all__:
        assert getattr(verl_core.testing, name).__name__ == name
    with pytest.raises(AttributeError):
        verl_core.testing.NoSuite  # noqa: B018
