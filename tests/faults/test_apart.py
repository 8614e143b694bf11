"""Runs whose durable writes go through the process beside the controller, from the first one on: the same promise."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import pytest
from verl_core import apart

from tests.support import light, runs
from tests.support.beside import at_once
from tests.support.kills import killed_at_random, same_run
from tests.support.points import killed_everywhere
from tests.support.promise import broken, broken_at_the_end, reference_of
from tests.support.tiny import Tiny


@pytest.mark.slow
def test_kills_of_either_process_change_nothing(tiny: Tiny, tmp_path: Path) -> None:
    """And a process for writes that is killed does not end the controller."""
    reference, run, log = tmp_path / "reference", tmp_path / "run", tmp_path / "log"
    runs.ok("run", "--config", tiny.config(60), "--run-dir", reference)
    kills = killed_at_random(tiny.config(60, run), run, log, random.Random(5), at_most=10, patience_s=6, beside=True)
    same_run(run, reference)
    told = log.read_text()
    assert kills >= 6, "too few to say anything"
    assert told.count("the process beside this one is gone") >= 2, told[-2000:]


@pytest.mark.slow
def test_a_run_killed_in_its_writes_goes_on_as_if_undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At crash points that are counted across both processes: both die there."""
    run = partial(light.run, steps=3, changes=("training.prompts_per_step=2", "storage.keep_checkpoints=1"))
    run(tmp_path / "undisturbed")
    undisturbed = reference_of(tmp_path / "undisturbed")
    monkeypatch.setattr(apart, "AFTER", apart.AFTER)
    monkeypatch.setattr(apart.Helper, "_start", apart.Helper._start)
    at_once()
    kills = 0
    for root in killed_everywhere(tmp_path, lambda root: None, run, first=20, every=41):
        assert broken(root, undisturbed) == [], root
        light.run(root, 3, changes=("training.prompts_per_step=2", "storage.keep_checkpoints=1"))
        assert broken_at_the_end(root, undisturbed) == [], root
        shutil.rmtree(root)
        kills += 1
    assert kills > 6
