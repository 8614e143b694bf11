"""Models and configs between verl-core and others, as a user moves them: by the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from verl_core.checkpoint.digest import policy_digest
from verl_core.cli.main import main
from verl_core_engines.fsdp import FsdpConfig, FsdpEngine

from tests.support import runs, verl_saves
from tests.support.models import context_of, random_model
from tests.support.tiny import Tiny

ROOT = Path(__file__).parents[2]
Call = Callable[..., runs.Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Call:
    """A command in this process: the imports are done."""

    def call(*arguments: str | Path) -> runs.Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return runs.Result(int(left.value.code or 0), out, err)

    return call


@pytest.fixture
def ok(cli: Call) -> Callable[..., str]:
    """The output of a command that must succeed."""

    def call(*arguments: str | Path) -> str:
        result = cli(*arguments)
        assert result.code == 0, f"{arguments} left with {result.code}:\n{result.out}\n{result.err}"
        return result.out

    return call


def digests_of(run: Path) -> dict[int, str]:
    """Step → policy digest, as the state log has it."""
    done = [entry["payload"]["result"] for entry in runs.entries(run) if entry["event"] == "train_step_done"]  # type: ignore[index]
    return {result["step"]: result["policy_digest"] for result in done}


def digest_of(folder: Path) -> str:
    return policy_digest(FsdpEngine(FsdpConfig(), context_of(str(folder))).sums())


def loaded_policies(run: Path) -> list[str]:
    """Policy digests that the starts of a run loaded, in order."""
    return [e["payload"]["policy_digest"] for e in runs.entries(run) if e["event"] == "prepared"]  # type: ignore[index]


# --- models -----------------------------------------------------------------------------------


def test_any_checkpoint_is_exported_and_a_new_run_starts_from_it(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, ok: Callable[..., str]
) -> None:
    digests = digests_of(undisturbed)
    assert f"policy {digests[8]}, as in the run" in runs.ok("export", undisturbed, "--to", tmp_path / "newest")
    assert digest_of(tmp_path / "newest") == digests[8]
    ok("export", undisturbed, "--step", "6", "--to", tmp_path / "six")
    assert digest_of(tmp_path / "six") == digests[6]
    tiny.trainer(tmp_path / "run", 8, [f"model.actor.path={tmp_path / 'six'}"]).run(until_step=1)
    assert loaded_policies(tmp_path / "run") == [digests[6]]


def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    undisturbed: Path, tmp_path: Path, cli: Call
) -> None:
    (tmp_path / "there").mkdir()
    damaged = tmp_path / "damaged"
    shutil.copytree(undisturbed, damaged)
    shard = next((damaged / "checkpoints/step_000006/actor").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    for run, step, to, code, words in (
        (undisturbed, "8", "there", 2, "is there already"),
        (undisturbed, "7", "out", 2, "no committed checkpoint of step 7 — there are"),
        (damaged, "6", "out", 4, shard.name),
        (tmp_path, "8", "out", 2, "no run here"),
    ):
        result = cli("export", run, "--step", step, "--to", tmp_path / to)
        assert (result.code, words in result.err) == (code, True), result.err
    assert {path.name for path in tmp_path.iterdir()} == {"there", "damaged"}


def test_without_a_step_the_newest_good_checkpoint_is_exported(undisturbed: Path, tmp_path: Path, cli: Call) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "checkpoints/step_000008/actor/config.json").write_text("{}")
    result = cli("export", run, "--to", tmp_path / "out")
    assert (result.code, "step 6: " in result.out, "skipped" in result.err) == (0, True, True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two real ranks under FSDP1 and FSDP2: a folder for each, with ``actor`` below."""
    folder = tmp_path_factory.mktemp("trained")
    model = random_model(folder / "model", "qwen3", tie_word_embeddings=True)
    command = [sys.executable, "-m", "tests.support.verl_training", model, str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=runs.environ(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    for kind in ("fsdp2", "fsdp1-mesh", "fsdp1"):
        verl_saves.put_beside(folder / kind / "actor", model)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1-mesh", "fsdp1"])
def test_what_two_real_ranks_saved_arrives_as_torch_itself_gathers_it(
    trained: Path, tmp_path: Path, kind: str, ok: Callable[..., str]
) -> None:
    import torch
    from safetensors.torch import load_file

    out = ok("import", trained / kind / "actor", "--to", tmp_path / "out")
    assert digest_of(tmp_path / "out") in out
    reference = load_file(trained / kind / "actor" / "reference.safetensors")
    found = load_file(tmp_path / "out/model.safetensors")
    assert found.keys() <= reference.keys()
    assert all(torch.equal(found[name], reference[name]) for name in found)
    if kind != "fsdp2":
        assert "optimizer: not imported: it numbers" in out
        return
    assert "optimizer: moments of 24 parameters after 3 updates" in out
    moments = load_file(tmp_path / "out/optimizer/moments.safetensors")
    assert int(moments.pop("step")) == 3
    assert all(torch.equal(moment, reference[name]) for name, moment in moments.items())


def test_a_run_starts_from_an_imported_checkpoint_and_survives_a_kill(
    tiny: Tiny, tmp_path: Path, ok: Callable[..., str]
) -> None:
    """The tiny model as verl would have saved it, with moments: killed before its first checkpoint, the run begins
    with them again."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny.model)
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    actor = verl_saves.save(tmp_path / "global_step_3" / "actor", state, parameters=parameters)
    verl_saves.put_beside(actor, tiny.model)
    for name, options in (("with", []), ("without", ["--weights-only"])):
        out = ok("import", tmp_path / "global_step_3", "--to", tmp_path / name, *options)
        assert "a start will refuse" not in out
    digests = {}
    for name in ("with", "without"):
        overrides = [f"model.actor.path={tmp_path / name}"]
        digests[name] = tiny.trainer(tmp_path / f"run-{name}", 8, overrides).run(until_step=3).policy_digest
    assert digests["with"] != digests["without"]
    again = tmp_path / "again"
    overrides = [f"model.actor.path={tmp_path / 'with'}", "training.fault_tolerance.checkpoint_interval_steps=50"]
    tiny.trainer(again, 8, overrides).run(until_step=2)
    shutil.rmtree(again / "checkpoints" / "step_000002")
    assert tiny.trainer(again, 8, overrides).run(until_step=3).policy_digest == digests["with"]


def test_a_hugging_face_folder_needs_no_import(tiny: Tiny, tmp_path: Path, cli: Call) -> None:
    result = cli("import", tiny.model, "--to", tmp_path / "out")
    assert (result.code, f"--set model.actor.path={tiny.model}" in result.err) == (2, True)


# --- configs ----------------------------------------------------------------------------------

VERL = """\
data:
  train_files: [{data}]
  train_batch_size: 8
  max_prompt_length: 16
  max_response_length: 6
actor_rollout_ref:
  model: {{path: {model}}}
  actor:
    optim: {{lr: 2e-4}}
    ppo_mini_batch_size: 8
    use_kl_loss: true
  rollout: {{name: vllm, n: 4, temperature: 1.0}}
algorithm: {{adv_estimator: grpo}}
trainer:
  total_training_steps: 8
  save_freq: 2
  default_local_dir: checkpoints/demo
  unheard_of: 1
"""
ARTICLE = """\
train:
  total_steps: 3
  save_interval: 1000
  async_checkpoint: true
  resume_from: null
  adaptive_checkpoint: {{enabled: true, intervals: [{{steps: 0, interval: 2}}, {{steps: 1000, interval: 500}}]}}
model:
  actor: {{name_or_path: {model}, use_flash_attn: true}}
data: {{train_files: [{data}], max_prompt_length: 16, max_response_length: 6, split: train}}
rollout: {{prompts_per_batch: 4, n: 4}}
training: {{prompts_per_step: 8}}
distributed: {{world_size: 1, backend: gloo}}
"""


def test_an_imported_config_is_accepted_and_what_it_lost_stands_in_it(
    tiny: Tiny, tmp_path: Path, cli: Call, ok: Callable[..., str]
) -> None:
    (tmp_path / "verl.yaml").write_text(VERL.format(data=tiny.data, model=tiny.model))
    result = cli("config", "import", tmp_path / "verl.yaml", "--out", tmp_path / "ours.yaml")
    assert result.code == 0
    for words in (
        "verl.yaml:11: actor_rollout_ref.actor.use_kl_loss: neither",
        "verl.yaml:12: actor_rollout_ref.rollout.name: no rollout engine 'vllm'",
        "verl.yaml:18: trainer.unheard_of: unknown key",
        "10 keys taken over",
    ):
        assert words in result.err, result.err
    text = (tmp_path / "ours.yaml").read_text()
    assert f"# Start: verl-core run --config {tmp_path}/ours.yaml --run-dir checkpoints/demo\n" in text
    assert "# line 18: trainer.unheard_of: unknown key\n" in text
    assert yaml.safe_load(text)["training"]["prompts_per_step"] == 8
    assert "are fine" in ok("check", "--config", tmp_path / "ours.yaml")
    dry = ("run", "--run-dir", tmp_path / "run", "--dry-run", "--config")
    assert "lr: 0.0002" in ok(*dry, tmp_path / "ours.yaml")
    assert ok("config", "import", tmp_path / "verl.yaml").splitlines()[3:] == text.splitlines()[3:]
    again = cli("config", "import", tmp_path / "verl.yaml", "--out", tmp_path / "ours.yaml")
    assert (again.code, "is there already" in again.err) == (2, True)
    refused = cli(*dry, tmp_path / "verl.yaml")
    assert (refused.code, "verl.yaml:18: trainer.unheard_of: unknown key" in refused.err) == (2, True)


def test_the_commands_of_articles_work_as_written(tiny: Tiny, tmp_path: Path, ok: Callable[..., str]) -> None:
    """``train --config FILE --log-dir DIR [--resume-from PATH] [--force-resume] [--async-checkpoint]``"""
    (tmp_path / "article.yaml").write_text(ARTICLE.format(data=tiny.data, model=tiny.model))
    base = ("train", "--config", tmp_path / "article.yaml", "--log-dir", tmp_path / "run")
    result = runs.cli(*base, "--async-checkpoint")
    assert (result.code, "done at step 3" in result.out) == (0, True), result.err
    assert "article.yaml:8: model.actor.use_flash_attn: sdpa takes flash kernels" in result.err
    assert {p.name for p in (tmp_path / "run/checkpoints").glob("step_*")} == {"step_000002", "step_000003"}
    first = digests_of(tmp_path / "run")[3]
    text = ARTICLE.format(data=tiny.data, model=tiny.model)
    (tmp_path / "from-step.yaml").write_text(text.replace("resume_from: null", "resume_from_step: 2"))
    assert "goes on after step 2" in ok(*base[:2], tmp_path / "from-step.yaml", *base[3:])
    path = tmp_path / "run/checkpoints/step_000002"
    out = ok(*base, "--resume-from", path, "--force-resume", "--async-checkpoint")
    assert "goes on after step 2" in out
    assert digests_of(tmp_path / "run")[3] == first


def test_a_checkpoint_is_named_by_step_or_by_a_relative_path(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ok: Callable[..., str]
) -> None:
    shutil.copytree(undisturbed, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    base = ("run", "--config", tiny.config(8), "--run-dir", "run")
    assert "goes on after step 6" in ok(*base, "--resume-from-step", "6")
    assert "goes on after step 6" in ok(*base, "--resume", "run/checkpoints/step_000006")
    assert ok(*base, "--resume-from-step", "auto")
    assert digests_of(tmp_path / "run") == digests_of(undisturbed)


def test_a_run_goes_on_from_an_older_step_past_a_bad_one(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, ok: Callable[..., str]
) -> None:
    """The same inputs would bring the same step again, so something must change: here the learning rate."""
    run = tmp_path / "run"
    tiny.trainer(run, 8).run(until_step=7)
    change = ("--set", "training.optim.lr=1e-5", "--set", "training.deterministic=false", "--force-resume")
    out = ok("run", "--run-dir", run, "--resume-from-step", "4", *change)
    assert "goes on after step 4" in out
    facts = json.loads(ok("status", run, "--json"))
    assert (facts["state"], facts["step"], facts["attempt"]) == ("DONE", 8, 2)
    assert facts["policy_digest"] != digests_of(undisturbed)[8]
    events = [entry["event"] for entry in runs.entries(run)]
    assert events.count("replay_differs") >= 1
    assert runs.generated_though_committed(run) == []
    assert ok("verify", run).endswith("clean\n")
