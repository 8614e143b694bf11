"""A run whose storage stops answering tells somebody within three seconds, and ends as the undisturbed run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import verl_core
from verl_core.types import Alert, StepResult

from tests.services.faulty_mount import FaultyMount
from tests.services.fixtures import prefix
from tests.services.seaweed import Seaweed
from tests.support.tiny import Tiny

STUCK_S = 5.0


def told_of_silence(
    tiny: Tiny, run: str, plugin: str, silence: Callable[[], None], end_of_silence: Callable[[], None]
) -> tuple[str, float]:
    """Run four steps, with silence after the second: the policy digest, and when the alert came after it began."""
    begun: list[float] = []
    alerts: list[tuple[float, Alert]] = []
    trainer = verl_core.create_trainer(tiny.config(4), run_dir=run, plugins=[plugin])

    def fall_silent(result: StepResult) -> None:
        if result.step == 2 and not begun:
            begun.append(time.monotonic())
            silence()
            threading.Timer(STUCK_S, end_of_silence).start()

    trainer.on("step_finished", fall_silent)
    trainer.on("alert_raised", lambda alert: alerts.append((time.monotonic(), alert)))
    digest = trainer.run().policy_digest
    assert time.monotonic() - begun[0] >= STUCK_S
    silent = [(at, alert) for at, alert in alerts if alert.title == "storage does not answer"]
    assert len(silent) == 1, alerts
    assert run in silent[0][1].text
    return digest, silent[0][0] - begun[0]


@pytest.fixture(scope="module")
def digest(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.trainer(tmp_path_factory.mktemp("four") / "run", 4).run().policy_digest


@pytest.mark.slow
def test_a_stuck_mount(tiny: Tiny, faulty_mount: FaultyMount, digest: str) -> None:
    run = f"nfs://{faulty_mount.path}/run"
    found, after_s = told_of_silence(tiny, run, "nfs", lambda: faulty_mount.set("hung"), lambda: faulty_mount.set("ok"))
    assert found == digest
    assert 2.5 < after_s < 4


@pytest.mark.slow
def test_a_frozen_server(tiny: Tiny, s3_env: Seaweed, digest: str) -> None:
    try:
        found, after_s = told_of_silence(tiny, f"s3://runs/{prefix()}", "s3", s3_env.freeze, s3_env.wake)
    finally:
        s3_env.wake()
    assert found == digest
    assert 2.5 < after_s < 4
