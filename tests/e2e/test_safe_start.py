"""A start either goes on exactly or says precisely why not: one message, with what to do about it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from verl_core.checkpoint import schema
from verl_core.cli.main import main
from verl_core.config import read_config
from verl_core.config.frozen import distributions
from verl_core.data.hashes import FileHashes
from verl_core.inputs import HASHES, Inputs, Start
from verl_core.plugins import load
from verl_core.testing.trees import tree_of

from tests.support import fake_nvml, runs
from tests.support.fake_nvml import uuid
from tests.support.tiny import Tiny

RECORDS = ("state_log.jsonl", "config.yaml", "orchestration.json", HASHES)  # of an attempt that was opened
FAKE_NVML = Path(fake_nvml.__file__)


@dataclass(frozen=True)
class Attempt:
    """A command line that must be refused, what it must say, and the exit code."""

    arguments: list[str | Path]
    says: tuple[str, ...]
    code: int = 2
    env: dict[str, str] = field(default_factory=dict)
    run: Path | None = None  # whose data must not change
    opened: bool = False  # refused when the state is loaded, behind the lines that open an attempt


@dataclass(frozen=True)
class Scene:
    tiny: Tiny
    folder: Path
    finished: Path  # a run of eight steps, to be copied

    def fresh(self, *overrides: str, env: dict[str, str] | None = None, says: tuple[str, ...]) -> Attempt:
        arguments: list[str | Path] = ["run", "--config", self.tiny.config(8), "--run-dir", self.folder / "new"]
        return Attempt([*arguments, *(a for o in overrides for a in ("--set", o))], says, env=env or {})

    def copy(self) -> Path:
        return Path(shutil.copytree(self.finished, self.folder / "run"))

    def again(
        self, run: Path, *more: str | Path, says: tuple[str, ...], code: int = 2, opened: bool = False
    ) -> Attempt:
        config: list[str | Path] = ["run", "--config", self.tiny.config(8), "--run-dir", run, "--set", "total_steps=9"]
        return Attempt([*config, *more], says, code, run=run, opened=opened)

    def model(self) -> Path:
        return Path(shutil.copytree(self.tiny.model, self.folder / "model"))


# --- each refusal is one message with the remedy -------------------------------------------------


def newer_schema(scene: Scene) -> Attempt:
    run, real = scene.folder / "run", schema.schema_version
    newer = real().replace(b'"schema": 2', b'"schema": 99').replace(b'"0.1.0"', b'"9.1.0"')
    schema.schema_version = lambda: newer  # type: ignore[assignment]
    try:
        scene.tiny.trainer(run, 8).run(until_step=2)
    finally:
        schema.schema_version = real
    return scene.again(
        run, says=("schema_version.json", "schema 99 is newer than schema", "use verl-core 9.1.0"), opened=True
    )


def changed_data(scene: Scene) -> Attempt:
    run, data = scene.copy(), scene.folder / scene.tiny.data.name
    data.write_bytes(scene.tiny.data.read_bytes().replace(b'"prompt": "', b'"prompt": "a', 1))
    says = ("the data set changed: sort.jsonl: content differs", "--force-resume")
    return scene.again(run, "--set", f"data.train_files=[{data}]", says=says)


def appended_data(scene: Scene) -> Attempt:
    run, data = scene.copy(), scene.folder / scene.tiny.data.name
    data.write_bytes(scene.tiny.data.read_bytes() + b'{"prompt": "abc>", "answer": "abc"}\n')
    size = scene.tiny.data.stat().st_size
    says = (f"sort.jsonl: 36 bytes appended, the first {size} are as before", "--force-resume")
    return scene.again(run, "--set", f"data.train_files=[{data}]", says=says)


def other_data_than_wanted(scene: Scene) -> Attempt:
    wanted = "sha256:" + "0" * 64
    says = (f"data.fingerprint: the data are not those of data.fingerprint: {wanted} → sha256:", "--force-resume")
    return scene.fresh(f"data.fingerprint={wanted}", says=says)


def damage(scene: Scene) -> Attempt:
    run = scene.copy()
    shard = next((run / "checkpoints/step_000008/actor").glob("shard_*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    says = (str(shard), "differs from its hash", "resume from an older step")
    return scene.again(run, "--resume", "8", says=says, code=4, opened=True)


def remote_code(scene: Scene) -> Attempt:
    model = scene.model()
    config = json.loads((model / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    says = (str(model / "config.json"), "evil.Model", "remote code is never run: take a model of an architecture")
    return scene.fresh(f"model.actor.path={model}", says=says)


def pickled_weights(scene: Scene) -> Attempt:
    model = scene.model()
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    says = ("the weights are a pickle: pytorch_model.bin", "convert the weights to safetensors")
    return scene.fresh(f"model.actor.path={model}", says=says)


def weights_cut_short(scene: Scene) -> Attempt:
    model = scene.model()
    os.truncate(model / "model.safetensors", 4000)
    says = ("model.safetensors", "4000 bytes, its header says", "download or export the model again")
    return scene.fresh(f"model.actor.path={model}", says=says)


def unknown_tokenizer(scene: Scene) -> Attempt:
    model = scene.model()
    config = json.loads((model / "tokenizer_config.json").read_text()) | {"tokenizer_class": "LamaTokenizer"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    says = ("tokenizer class 'LamaTokenizer' is not on the list", "did you mean 'LlamaTokenizer'?")
    return scene.fresh(f"model.actor.path={model}", says=says)


def no_such_device(scene: Scene) -> Attempt:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    says = ("training.device: no CUDA device is available", "auto, cpu, or cuda where a GPU is at hand")
    return scene.fresh("training.device=cuda", says=says)


def wrong_gpu(scene: Scene) -> Attempt:
    wrong = uuid(1)[:-1] + "0"
    says = (f"distributed.gpu_uuids: {wrong} is not here", f"did you mean '{uuid(1)}'?")
    return scene.fresh(f"distributed.gpu_uuids=[{wrong}]", env={"FAKE_NVML": fake_nvml.node(2)}, says=says)


def too_few_gpus(scene: Scene) -> Attempt:
    says = ("6 for training and 2 for rollouts, but 4 GPUs are visible here", "ask for fewer")
    pools = ("distributed.train_gpus=6", "distributed.rollout_gpus=2")
    return scene.fresh(*pools, env={"FAKE_NVML": fake_nvml.node(4)}, says=says)


def wrong_key(scene: Scene) -> Attempt:
    return scene.fresh("rollout.prompts_per_bach=4", says=("unknown key — did you mean 'prompts_per_batch'?",))


def missing_secret(scene: Scene) -> Attempt:
    says = ("monitoring.log.token: environment variable NO_SUCH_TOKEN is not set", "export NO_SUCH_TOKEN=…")
    attempt = scene.fresh(says=says)
    file = scene.folder / "secret.yaml"
    file.write_text(scene.tiny.config(8).read_text() + 'monitoring: {log: {token: "${oc.env:NO_SUCH_TOKEN}"}}\n')
    return Attempt([file if a == scene.tiny.config(8) else a for a in attempt.arguments], says)


def password_in_a_uri(scene: Scene) -> Attempt:
    says = ("storage.checkpoint_uri: a URI with a password or key in it", "by the environment")
    return scene.fresh("storage.checkpoint_uri=s3://me:hunter2-secret@bucket/x", says=says)


def read_only_store(scene: Scene) -> Attempt:
    says = ("--run-dir", "/proc/run")
    return Attempt(["run", "--config", scene.tiny.config(8), "--run-dir", "/proc/run"], says, code=1)


def too_slow_interface(scene: Scene) -> Attempt:
    says = ("distributed.nccl.NCCL_SOCKET_IFNAME: 'bond77' matches no network interface", "here: ")
    return scene.fresh("distributed.nccl.NCCL_SOCKET_IFNAME=bond77", says=says)


def wrong_pins(scene: Scene) -> Attempt:
    pins = scene.folder / "pins.txt"
    pins.write_text("torch==0.0.1\n")
    return scene.fresh(f"frozen={pins}", says=(f"{pins}:1: torch is 2.", "pinned is 0.0.1", "pip install -r"))


REFUSALS: list[Callable[[Scene], Attempt]] = [
    newer_schema, changed_data, appended_data, other_data_than_wanted, damage, remote_code, pickled_weights,
    weights_cut_short, unknown_tokenizer, no_such_device, wrong_gpu, too_few_gpus, wrong_key, missing_secret,
    password_in_a_uri, read_only_store, too_slow_interface, wrong_pins,
]  # fmt: skip


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command line in this process, which has done its imports."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def call(*arguments: str | Path, env: dict[str, str] | None = None) -> Said:
        for name, value in {"FAKE_NVML": "", **(env or {})}.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Said(int(left.value.code or 0), said.out, said.err)

    return call


Command = Callable[..., Said]


@pytest.mark.parametrize("make", REFUSALS, ids=lambda make: make.__name__)
def test_each_refusal_is_one_message_with_the_remedy(
    make: Callable[[Scene], Attempt], tiny: Tiny, undisturbed: Path, tmp_path: Path, command: Command
) -> None:
    attempt = make(Scene(tiny, tmp_path, undisturbed))
    before = tree_of(str(attempt.run)) if attempt.run else {}
    done = command(*attempt.arguments, env=attempt.env)
    [line] = [line for line in done.err.splitlines() if not line.startswith("WARNING")]
    assert (done.code, line.startswith("error: "), done.out) == (attempt.code, True, ""), done.err
    assert [text for text in attempt.says if text not in line] == [], line
    assert " — " in line
    assert "hunter2" not in line
    if attempt.run is None:
        assert not (tmp_path / "new").exists()
    else:
        after = tree_of(str(attempt.run))
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed <= {".lock", *(RECORDS if attempt.opened else ())}


def test_several_refusals_come_in_one_list(tiny: Tiny, tmp_path: Path, command: Command) -> None:
    pairs = ("distributed.train_gpus=9", "rollout.n=1", "distributed.nccl.NCCL_IB_SL=99")
    arguments = [a for pair in pairs for a in ("--set", pair)]
    done = command("run", "--config", tiny.config(8), "--run-dir", tmp_path / "run", *arguments)
    first, *lines = done.err.splitlines()
    assert (done.code, first) == (2, "error: 3 findings before the start; nothing was written")
    assert [line.split()[1] for line in lines] == [pair.partition("=")[0] for pair in (pairs[1], pairs[2], pairs[0])]
    assert all(" — " in line for line in lines)
    assert not (tmp_path / "run").exists()


# --- what check shows ----------------------------------------------------------------------------


def test_check_shows_the_pools_nccls_variables_and_the_stores(tiny: Tiny, tmp_path: Path) -> None:
    """In a process of its own, with a driver that is a module on its path."""
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(FAKE_NVML, site / "pynvml.py")
    env = {"PYTHONPATH": str(site), "FAKE_NVML": fake_nvml.node(3), "NCCL_DEBUG": "WARN"}
    pools = ("distributed.train_gpus=1", "distributed.rollout_gpus=2", "training.device=cpu")
    pairs = (*pools, "distributed.nccl.NCCL_IB_SL=1")
    arguments = [a for pair in pairs for a in ("--set", pair)]
    done = runs.cli("check", "--config", tiny.config(8), "--run-dir", tmp_path / "run", *arguments, env=env)
    assert done.code == 0, done.out + done.err
    card = "(NVIDIA Fake, 80 GiB, now number"
    for line in (
        f"ok: gpu: train, 0: {uuid(0)} {card} 0)",
        f"ok: gpu: rollout, 0: {uuid(1)} {card} 1)",
        f"ok: gpu: rollout, 1: {uuid(2)} {card} 2)",
        "ok: nccl: NCCL_IB_SL=1 (config)",
        "ok: nccl: NCCL_DEBUG=WARN (environment)",
        f"ok: store: {tmp_path}/run: a file system with locks",
        f"{tiny.config(8)}: config, plugins, paths, model folder and 22 prompts are fine",
    ):
        assert line in done.out.splitlines()
    assert not (tmp_path / "run").exists()


def test_check_frozen_needs_no_config_and_names_what_differs(tmp_path: Path, command: Command) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("".join(f"{name}=={version}\n" for name, version in distributions().items()))
    bad.write_text("torch==0.0.1\nnothing-of-this-name==1\n")
    done = command("check", "--frozen", "--requirements", good)
    assert (done.code, done.out.splitlines()) == (0, [f"{good}: what is installed is what is pinned"])
    done = command("check", "--frozen", "--requirements", bad)
    lines = done.out.splitlines()
    assert done.code == 2
    assert lines[0].startswith(f"error: {bad}:2: nothing-of-this-name 1 is not installed — pip install -r")
    assert lines[1].startswith(f"error: {bad}:1: torch is 2.")
    assert lines[2].startswith(f"warning: {bad}: installed, but not pinned: ")
    assert "give" in command("check", "--frozen", "--requirements", tmp_path / "none.txt").out
    assert command("check").err.startswith("error: check: nothing to check — --config FILE")


# --- what a start goes on in spite of, and what it remembers ---------------------------------------


def test_a_forced_start_is_on_record_before_anything_is_overwritten(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, command: Command
) -> None:
    run, data = Path(shutil.copytree(undisturbed, tmp_path / "run")), tmp_path / tiny.data.name
    data.write_bytes(tiny.data.read_bytes() + b'{"prompt": "abc>", "answer": "abc"}\n')
    changes = ["--set", f"data.train_files=[{data}]", "--set", "rollout.temperature=0.9"]
    arguments = ["run", "--config", tiny.config(9), "--run-dir", run, *changes]
    done = command(*arguments, "--force-resume")
    assert done.code == 0, done.err
    forced = [entry for entry in runs.entries(run) if entry["event"] == "forced"]
    [changed] = [entry["payload"]["changes"] for entry in forced]  # type: ignore[index]
    assert "rollout.temperature: 1.0 → 0.9" in changed[0]
    assert changed[1].startswith("the data set changed: sort.jsonl: 36 bytes appended")


def test_a_restart_does_not_read_the_data_again(tiny: Tiny, tmp_path: Path) -> None:
    run, long_ago = tmp_path / "run", time.time_ns() - 3600 * 10**9
    data = Path(shutil.copy(tiny.data, tmp_path / "sort.jsonl"))
    os.utime(data, ns=(long_ago, long_ago))

    def inputs() -> Inputs:
        loaded = read_config(str(tiny.config(2)), [f"data.train_files=[{data}]"])
        return Inputs(loaded, load([]), Start(str(run)))

    # its change time cannot be set back: pretend that the run began an hour later
    known = FileHashes(clock=lambda: time.time_ns() + 3600 * 10**9)
    known.of(data)
    run.mkdir()
    (run / HASHES).write_bytes(known.encode())
    again = inputs()
    assert len(again.train.prompts) == 22
    assert again.hashes.bytes_read == 0
    data.write_bytes(data.read_bytes().replace(b">", b"a>", 1))
    changed = inputs()
    assert changed.train.fingerprint != again.train.fingerprint
    assert changed.hashes.bytes_read == data.stat().st_size


def test_e10_a_run_keeps_its_gpus_when_the_scheduler_renumbers_them(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    pools = ["distributed.train_gpus=1", "distributed.rollout_gpus=1", "training.device=cpu"]
    seen = []
    for steps, order in ((1, [0, 1, 2, 3]), (2, [3, 1, 0, 2]), (3, [2, 0, 3, 1])):
        monkeypatch.setenv("FAKE_NVML", fake_nvml.renumbered(fake_nvml.node(4), order))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        tiny.trainer(tmp_path / "run", 3, pools).run(until_step=steps)
        devices = json.loads((tmp_path / "run/orchestration.json").read_text())["devices"]
        seen.append((os.environ["CUDA_VISIBLE_DEVICES"], devices))
    assert seen == [(f"{uuid(0)},{uuid(1)}", {"train": [uuid(0)], "rollout": [uuid(1)]})] * 3
