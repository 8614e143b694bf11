"""Durable before effect: every line comes behind the data that it speaks of, and before what follows from it.

A recording storage writes down what was asked of it, and is slow with lines: whoever does not wait for them is seen.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import orjson
from verl_core.types import Bytes
from verl_core_storage.local import LocalStorage

from tests.support import light

SLOW_S = 0.03
run = partial(light.run, steps=3, changes=["storage.keep_checkpoints=1"])


class Recorder(LocalStorage):
    """``done``: names of what was done, in order; a line of the state log is named by its event and what it is of."""

    def __init__(self, root: str, done: list[str]) -> None:
        super().__init__(root)
        self.done = done

    def child(self, prefix: str) -> Recorder:
        return Recorder(self._at(prefix), self.done)

    def append(self, path: str, data: Bytes, *, sync: bool = True) -> None:
        time.sleep(SLOW_S)
        super().append(path, data, sync=sync)
        self.done += [name for line in bytes(data).splitlines() for name in names(orjson.loads(line))]

    def publish(self, staged: str, target: str) -> None:
        super().publish(staged, target)
        self.done.append(f"published {target}")

    def move(self, path: str, target: str) -> None:
        self.done.append(f"moved {path}")
        super().move(path, target)

    def delete(self, path: str) -> None:
        self.done.append(f"deleted {path.split('/')[0]}")
        super().delete(path)


def names(line: dict[str, object]) -> Iterable[str]:
    """``rollout_complete epoch_0/batch_1``, ``train_step_done 3``, ``checkpoints_deleted 2``, ``opened`` …"""
    event, payload = str(line["event"]), line["payload"]
    assert isinstance(payload, dict)
    match event:
        case "rollout_complete":
            key = payload["ref"]["key"]
            return [f"{event} epoch_{key['epoch']}/batch_{key['batch']}"]
        case "train_step_done":
            return [f"{event} {payload['result']['step']}"]
        case "checkpoint_committed":
            return [f"{event} {payload['ref']['step']}"]
        case "checkpoints_deleted":
            return [f"{event} {step}" for step in payload["steps"]]
        case "condemned":
            return [f"{event} {payload['name']}"]
    return [event]


def recorded(root: Path, **more: object) -> list[str]:
    """What the run does, in order."""
    done: list[str] = []
    run(root, storage=lambda inner: Recorder(inner.uri, done), **more)  # type: ignore[arg-type]
    return done


def in_order(done: list[str], *wanted: str) -> bool:
    """Whether these names are there, in this order."""
    rest = iter(done)
    return all(name in rest for name in wanted)


def test_a_line_is_written_after_its_data_and_before_its_effects(tmp_path: Path) -> None:
    done = recorded(tmp_path)
    for key in ("epoch_0/batch_0", "epoch_0/batch_1", "epoch_0/batch_5"):
        assert in_order(done, f"published {key}", f"rollout_complete {key}"), key
    for step in (1, 2, 3):
        saved = f"published step_{step:06d}"
        assert in_order(done, f"train_step_done {step}", saved, f"checkpoint_committed {step}"), step
    for step in (1, 2):
        gone = f"moved step_{step:06d}"
        assert in_order(done, f"checkpoint_committed {step + 1}", f"checkpoints_deleted {step}", gone), step
    assert in_order(done, "opened", "prepared", "published epoch_0/batch_0")


def test_an_attempt_is_on_record_before_it_sweeps_what_others_left(tmp_path: Path) -> None:
    run(tmp_path, until=1)
    leftover = tmp_path / "rollouts/.staging/rollout_20270115_080000_0_e0_b1_00000000"
    leftover.mkdir(parents=True)
    (leftover / "samples.jsonl").write_bytes(b"half")
    assert in_order(recorded(tmp_path), "opened", "deleted .staging", "swept", "prepared")


def test_a_damaged_checkpoint_is_condemned_on_record_before_it_is_moved(tmp_path: Path) -> None:
    run(tmp_path, until=2)
    (tmp_path / "checkpoints/step_000002/config.yaml").write_text("damage")
    done = recorded(tmp_path)
    assert in_order(done, "condemned step_000002", "moved step_000002", "prepared")


def test_a_damaged_batch_is_condemned_on_record_before_it_is_moved(tmp_path: Path) -> None:
    run(tmp_path, until=2)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "rollouts/epoch_0/batch_1/samples.jsonl").write_bytes(b"damage")
    key = "epoch_0/batch_1"
    assert in_order(recorded(tmp_path), f"condemned {key}", f"moved {key}", f"published {key}", "train_step_done 1")


def test_nothing_is_trained_on_before_all_batches_of_its_step_are_there(tmp_path: Path) -> None:
    done = recorded(tmp_path)
    for step, batches in ((1, (0, 1)), (2, (2, 3)), (3, (4, 5))):
        for batch in batches:
            assert in_order(done, f"rollout_complete epoch_0/batch_{batch}", f"train_step_done {step}")
    assert [name for name in done if name.startswith("train_step_done")] == [f"train_step_done {n}" for n in (1, 2, 3)]
