"""A reward model as a role: it cannot change unnoticed, and another may take its place in the middle of a run."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
import zstandard
from safetensors.torch import load, load_file, save_file
from verl_core.api import create_trainer
from verl_core.cli.main import main
from verl_core.errors import RunMismatch
from verl_core.state.folder import LOG
from verl_core.state.history import fold
from verl_core.state.journal import read_log

from tests.support import runs
from tests.support.kills import killed_at_random, same_run
from tests.support.models import random_classifier
from tests.support.tiny import Tiny

KILLS = 12


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(random_classifier(tmp_path_factory.mktemp("first") / "model", seed=1))


@pytest.fixture(scope="module")
def second(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that mostly agrees with the first, on another scale."""
    return like(first, tmp_path_factory.mktemp("second") / "model", 3.0, 17)


def like(model: Path, folder: Path, scale: float, seed: int) -> Path:
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    noise = torch.randn(tensors["score.weight"].shape, generator=torch.Generator().manual_seed(seed)) / 20
    tensors["score.weight"] = scale * (tensors["score.weight"] + noise)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_a_reward_model_that_changed_in_its_folder_is_refused(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    model, run = Path(shutil.copytree(first, tmp_path / "model")), tmp_path / "run"
    config = tiny.config(4, reward_model=model)
    create_trainer(config, run_dir=run).run(until_step=2)
    before = runs.lines(run)
    shutil.copyfile(random_classifier(tmp_path / "other", seed=2) + "/model.safetensors", model / "model.safetensors")
    refused = runs.cli("run", "--run-dir", run)
    assert (refused.code, refused.err.count("\n")) == (RunMismatch.exit_code, 1)
    assert "the reward model changed" in refused.err
    assert runs.lines(run) == before
    shutil.copyfile(first / "model.safetensors", model / "model.safetensors")
    assert create_trainer(config, run_dir=run).run().state == "DONE"


def test_a_missing_reward_model_is_a_finding_before_anything_is_written(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny.config(4, reward_model=Path("/nowhere/model"))
    refused = runs.cli("run", "--config", config, "--run-dir", tmp_path / "run")
    assert (refused.code, "model folder does not exist" in refused.err) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing_with_a_reward_model(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    config, dice = tiny.config(40, reward_model=first), random.Random(5)
    reference, run = tmp_path / "reference", tmp_path / "run"
    runs.ok("run", "--config", config, "--run-dir", reference)
    kills = killed_at_random(config, run, tmp_path / "log", dice, lines=16, at_most=KILLS)
    assert kills >= KILLS, "too few to say anything: make the run longer"
    same_run(run, reference)


# --- another model in the middle of a run -----------------------------------------------------

STEPS, SWAP = 8, 5  # checkpoints lie at even steps: what comes after one is run again


def swap(run: Path, model: Path | str, *more: str) -> runs.Result:
    arguments = ("--checkpoint", run, "--new-model", model, "--name", "on call", *more)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err, pytest.raises(SystemExit) as left:
        main(["update-reward", *map(str, arguments)])
    return runs.Result(int(left.value.code or 0), out.getvalue(), err.getvalue())


def update_of(run: Path) -> dict[str, Any]:
    [found] = updates_of(run)
    return found


def updates_of(run: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = runs.entries(run)
    return [entry["payload"] for entry in entries if entry["event"] == "reward_updated"]


@pytest.fixture(scope="module")
def begun(tiny: Tiny, first: Path, second: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps by the first model, then the swap."""
    folder = tmp_path_factory.mktemp("begun")
    create_trainer(tiny.config(STEPS, reward_model=first), run_dir=folder / "run").run(until_step=SWAP)
    done = swap(folder / "run/checkpoints/step_000004", second)  # a checkpoint stands for its run
    assert (done.code, done.err) == (0, ""), done.err
    return folder / "run"


@pytest.fixture(scope="module")
def swapped(begun: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undisturbed run with the swap."""
    run = Path(shutil.copytree(begun, tmp_path_factory.mktemp("swapped") / "run"))
    assert create_trainer(run / "config.yaml", run_dir=run).run().state == "DONE"
    return run


def test_a_swap_is_on_record_and_shown_and_what_is_committed_keeps_its_rewards(
    tiny: Tiny, first: Path, second: Path, begun: Path, swapped: Path, tmp_path: Path
) -> None:
    update = update_of(begun)
    old, new = update["old"], update["new"]
    assert (update["who"], update["from_step"], update["samples"]) == ("on call", SWAP + 1, 152)
    assert (old["path"], new["path"]) == (str(first), str(second))
    assert old["digest"] != new["digest"]
    shown = runs.ok("status", swapped)
    assert f"scored by   sequence_classifier {second} ({new['digest'][:19]}…), since step {SWAP + 1}" in shown
    whole = tmp_path / "whole"
    create_trainer(tiny.config(STEPS, reward_model=first), run_dir=whole).run()
    same = [name for name, data in runs.batches(whole).items() if runs.batches(swapped)[name] == data]
    assert same == sorted(runs.batches(begun)), "those before the swap, and no other"


def test_the_rewards_of_a_swap_are_those_of_the_new_model_on_the_scale_of_the_old_one(
    second: Path, swapped: Path, begun: Path
) -> None:
    update, reward = update_of(swapped), scorer(second)
    made_after = [name for name in runs.batches(swapped) if name not in runs.batches(begun)]
    lines = [json.loads(line) for name in made_after for line in runs.batches(swapped)[name].splitlines()[:-1]]
    assert len(lines) >= 80
    for line in lines:
        assert line["reward"] == update["scale"] * reward(line) + update["shift"]
    before = [json.loads(line) for data in runs.batches(begun).values() for line in data.splitlines()[:-1]]
    old = sum(line["reward"] for line in before) / len(before)
    new = sum(update["scale"] * reward(line) + update["shift"] for line in before) / len(before)
    assert new == pytest.approx(old, abs=1e-9), "the scale of the rewards does not jump"


def scorer(model: Path) -> Callable[[dict[str, str]], float]:
    from verl_core.types import BuildContext, Prompt
    from verl_core_engines.classifier import ClassifierConfig, build

    reward = build(ClassifierConfig(str(model)), BuildContext())
    return lambda line: reward.score([Prompt(0, line["prompt"], "", ())], [line["response"]])[0]


def test_a_resume_says_in_the_log_which_model_scores_from_which_step(
    second: Path, begun: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Path(shutil.copytree(begun, tmp_path / "run"))
    with caplog.at_level(logging.WARNING, "verl"):
        create_trainer(run / "config.yaml", run_dir=run).run(until_step=SWAP + 1)
    assert f"scored by sequence_classifier {second}" in caplog.text
    assert f"since step {SWAP + 1}, in place of" in caplog.text


@pytest.mark.slow
def test_a_run_killed_on_both_sides_of_its_swap_ends_as_the_undisturbed_one(
    tiny: Tiny, first: Path, second: Path, begun: Path, swapped: Path, tmp_path: Path
) -> None:
    config, run, log = tiny.config(STEPS, reward_model=first), tmp_path / "run", tmp_path / "log"
    process = runs.start("run", "--config", config, "--run-dir", run, "--until-step", str(SWAP), log=log)
    runs.wait_for(lambda: len(runs.batches(run)) >= 3 or process.poll() is not None, 60, "three batches")
    process.kill()
    process.wait()
    create_trainer(config, run_dir=run).run(until_step=SWAP)
    assert swap(run, second).code == 0
    assert update_of(run) == update_of(begun)
    kills = killed_at_random(config, run, log, random.Random(3), lines=6, at_most=4)
    assert kills >= 2, "too few to say anything"
    same_run(run, swapped)


def test_a_swap_killed_before_during_and_after_its_line_is_whole_or_not_there(
    begun: Path, swapped: Path, second: Path, tmp_path: Path
) -> None:
    """A command that was killed left some bytes of its line, none, or all."""
    line = (begun / "state_log.jsonl").read_bytes().splitlines(keepends=True)[-1]
    assert b'"reward_updated"' in line
    for kept in (0, len(line) // 2, len(line) - 1):
        run = Path(shutil.copytree(begun, tmp_path / f"run{kept}"))
        data = (run / "state_log.jsonl").read_bytes()
        (run / "state_log.jsonl").write_bytes(data[: len(data) - len(line) + kept])
        assert fold(read_log(runs.storage(run), LOG).entries).swaps == []
        again = swap(run, second)
        assert (again.code, again.err) == (0, "")
        assert update_of(run) == update_of(begun)
    create_trainer(run / "config.yaml", run_dir=run).run()
    same_run(run, swapped)


def test_a_batch_from_before_a_swap_that_is_made_again_is_scored_as_it_was(
    begun: Path, swapped: Path, tmp_path: Path
) -> None:
    """The fifth step is run again from the checkpoint of the fourth, one of its batches is damaged."""
    run = Path(shutil.copytree(begun, tmp_path / "run"))
    shutil.rmtree(run / "checkpoints/step_000005")
    damaged = run / "rollouts/epoch_1/batch_2/samples.jsonl"
    damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    assert create_trainer(run / "config.yaml", run_dir=run).run().state == "DONE"
    assert sum(entry["event"] == "condemned" for entry in runs.entries(run)) >= 1
    assert runs.batches(run) == runs.batches(swapped)
    assert runs.status(run)["policy_digest"] == runs.status(swapped)["policy_digest"]


def test_batches_of_a_begun_step_keep_their_rewards_and_the_others_get_the_new_model(
    tiny: Tiny, first: Path, second: Path, begun: Path, tmp_path: Path
) -> None:
    """Killed with one of the two batches of a step committed, its line not yet in the state log."""
    donor, run = tmp_path / "donor", Path(shutil.copytree(begun, tmp_path / "run"))
    drop_last_line(run)
    shutil.copytree(run, donor)
    create_trainer(tiny.config(STEPS, reward_model=first), run_dir=donor).run(until_step=SWAP + 1)
    one, other = sorted(runs.batches(donor).keys() - runs.batches(run).keys())
    shutil.copytree(donor / "rollouts" / one, run / "rollouts" / one)
    assert swap(run, second).code == 0
    assert update_of(run)["from_step"] == SWAP + 1
    lost = Path(shutil.copytree(run, tmp_path / "lost"))
    digest = create_trainer(run / "config.yaml", run_dir=run).run().policy_digest
    assert runs.batches(run)[one] == runs.batches(donor)[one]
    assert runs.batches(run)[other] != runs.batches(donor)[other]
    assert runs.generated_though_committed(run) == []
    create_trainer(run / "config.yaml", run_dir=lost).run(until_step=STEPS - 1)
    for saved in (lost / "checkpoints").glob("step_*"):  # the policy comes from the batches alone
        shutil.rmtree(saved)
    assert create_trainer(run / "config.yaml", run_dir=lost).run().policy_digest == digest


def drop_last_line(run: Path) -> None:
    lines = (run / "state_log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "state_log.jsonl").write_bytes(b"".join(lines[:-1]))


def test_checkpoints_hold_the_reward_in_little(second: Path, swapped: Path) -> None:
    data = (swapped / "checkpoints/step_000008/runtime_state.msgpack.zst").read_bytes()
    reward = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))["reward"]
    update = update_of(swapped)
    light = {name: reward[name] for name in ("name", "path", "digest", "scale", "shift")}
    assert light == {**update["new"], "scale": update["scale"], "shift": update["shift"]}
    assert reward["tokenizer_config"] == (second / "tokenizer_config.json").read_bytes()
    kept, whole = load(reward["head"]), load_file(second / "model.safetensors")
    assert list(kept) == ["score.weight"]
    assert torch.equal(kept["score.weight"], whole["score.weight"])


def test_a_second_swap_goes_on_from_the_first_and_a_moved_folder_changes_nothing(
    begun: Path, swapped: Path, second: Path, tmp_path: Path
) -> None:
    run, moved = Path(shutil.copytree(begun, tmp_path / "run")), Path(shutil.copytree(second, tmp_path / "moved"))
    assert swap(run, moved).code == 0
    one, other = updates_of(run)
    assert (other["scale"], other["shift"], other["samples"]) == (one["scale"], one["shift"], 0)
    create_trainer(run / "config.yaml", run_dir=run).run()
    same_run(run, swapped)


def test_a_swap_without_a_warm_start_takes_the_outputs_as_they_are_and_may_be_to_a_function(
    begun: Path, second: Path, tmp_path: Path
) -> None:
    for model, name in ((second, "model"), ("exact_match", "function")):
        run = Path(shutil.copytree(begun, tmp_path / name))
        drop_last_line(run)
        assert swap(run, model, "--no-warm-start").code == 0
        update = update_of(run)
        assert (update["scale"], update["shift"], update["samples"]) == (1.0, 0.0, 0)
    create_trainer(run / "config.yaml", run_dir=run).run()
    names = runs.batches(run).keys() - runs.batches(begun).keys()
    rewards = [json.loads(line)["reward"] for n in names for line in runs.batches(run)[n].splitlines()[:-1]]
    assert set(rewards) <= {0.0, 1.0}


def test_a_swap_that_cannot_be_is_one_line_with_a_remedy_and_changes_nothing(
    first: Path, second: Path, begun: Path, swapped: Path, tmp_path: Path
) -> None:
    pickled = Path(shutil.copytree(second, tmp_path / "pickled"))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    two = random_classifier(tmp_path / "two", num_labels=2)
    turned = like(first, tmp_path / "turned", -1.0, 17)
    cases: list[tuple[Path, Path | str, str, str]] = [
        (tmp_path / "nothing", second, "no run here", "--run-dir"),
        (begun, tmp_path / "nowhere", "model folder does not exist", "safetensors"),
        (begun, pickled, "the weights are a pickle", "safetensors"),
        (begun, two, "has 2 outputs, not one", "num_labels"),
        (begun, turned, "no positive scale fits", "--no-warm-start"),
        (begun, second, "it scores this run already", "another folder"),
        (swapped, first, "the run is finished", "new run"),
    ]
    for run, model, what, remedy in cases:
        before = (run / "state_log.jsonl").read_bytes() if run.exists() else b""
        refused = swap(run, model)
        assert (refused.code, refused.err.count("\n")) == (2, 1), (what, refused.err)
        assert what in refused.err
        assert remedy in refused.err.partition(" — ")[2]
        assert not run.exists() or (run / "state_log.jsonl").read_bytes() == before


def test_a_swap_is_refused_while_a_controller_lives(tiny: Tiny, first: Path, second: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = runs.start(
        "run", "--config", tiny.config(500, reward_model=first), "--run-dir", run, log=tmp_path / "log"
    )
    try:
        runs.wait_for(lambda: runs.lines(run) > 10 or process.poll() is not None, 60, "the first steps")
        refused = swap(run, second)
        assert (refused.code, str(process.pid) in refused.err, refused.err.count("\n")) == (3, True, 1)
    finally:
        process.kill()
        process.wait()
    assert updates_of(run) == []
