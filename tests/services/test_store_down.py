"""The S3 server of the checkpoints is killed in mid-run, or dead at a start: with copies on this host a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import verl_core
from verl_core.api import Trainer
from verl_core.checkpoint.sharded import ShardedCheckpointer
from verl_core.errors import VerlError
from verl_core.types import Alert, RunIdentity, StepResult

from tests.services.fixtures import open_s3, place
from tests.services.seaweed import Seaweed
from tests.support import runs
from tests.support.tiny import Tiny


@pytest.mark.slow
def test_e5_a_run_outlives_the_server_of_its_checkpoints(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, s3_env: Seaweed
) -> None:
    at, run, alerts = place(), tmp_path / "run", list[Alert]()
    overrides = [
        f"storage.checkpoint_uri={at}", "storage.options.attempts=1",
        f"backup.local_backup_dir={tmp_path}/copies",
    ]  # fmt: skip
    trainer = verl_core.create_trainer(tiny.config(8), run_dir=run, plugins=["s3", "local"], overrides=overrides)

    def down_then_up(result: StepResult) -> None:
        if result.step == 3:
            s3_env.kill()
        if result.step == 7:
            s3_env.start()

    trainer.on("step_finished", down_then_up)
    trainer.on("alert_raised", alerts.append)
    try:
        digest = trainer.run().policy_digest
    finally:
        s3_env.kill()
        s3_env.start()
    assert digest == runs.status(undisturbed)["policy_digest"]
    assert "storage is not writable" in [alert.title for alert in alerts]
    # the last save may still wait: a start on this host carries it over
    verl_core.create_trainer(tiny.config(8), run_dir=run, plugins=["s3", "local"], overrides=overrides).run()
    saved = ShardedCheckpointer(open_s3(at), RunIdentity(str(runs.entries(run)[0]["run_id"]), 0, 9))
    newest = saved.list()[0]
    saved.verify(newest)
    assert newest.step == 8
    assert runs.ok("verify", run).endswith("clean\n")


@pytest.mark.slow
def test_e5_a_run_goes_on_although_the_server_of_its_checkpoints_is_dead(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, s3_env: Seaweed, caplog: pytest.LogCaptureFixture
) -> None:
    at, run = place(), tmp_path / "run"
    overrides = [
        f"storage.checkpoint_uri={at}", "storage.options.attempts=1",
        f"backup.local_backup_dir={tmp_path}/copies",
    ]  # fmt: skip

    def trainer() -> Trainer:
        return verl_core.create_trainer(tiny.config(8), run_dir=run, plugins=["s3", "local"], overrides=overrides)

    s3_env.kill()
    try:
        with pytest.raises(VerlError, match="checkpoint_uri"):
            trainer()
        assert not run.exists()
        s3_env.start()
        trainer().run(until_step=4)
        s3_env.kill()
        digest = trainer().run().policy_digest
    finally:
        s3_env.kill()
        s3_env.start()
    assert "the run goes on with its copies on this host" in caplog.text
    assert digest == runs.status(undisturbed)["policy_digest"]
    trainer().run()
    saved = ShardedCheckpointer(open_s3(at), RunIdentity(str(runs.entries(run)[0]["run_id"]), 0, 9))
    saved.verify(saved.list()[0])
    assert saved.list()[0].step == 8
    assert runs.ok("verify", run).endswith("clean\n")
