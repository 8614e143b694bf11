"""A secret never reaches the run folder, a log or an error, whichever way it came in and whatever goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard

from tests.support import runs
from tests.support.runs import Result
from tests.support.tiny import Tiny

TOKEN = "hf_planted0123456789"  # in a variable whose name says so; no config refers to it
KEY = 'k/ey"planted+\\1'  # by interpolation, with all that JSON, repr and URLs write otherwise
PASSWORD = "planted-pass0rd"  # in the clear, in the URL of an endpoint
SESSION = "planted-session"  # by interpolation, too
ENV = {"SOME_API_TOKEN": TOKEN, "STORE_LOGIN": KEY, "HOOK": SESSION}
CONFIG = f"""
storage:
  keep_checkpoints: 3
  secret_access_key: "${{oc.env:STORE_LOGIN}}"
  access_key_id: somebody
  endpoint_url: "http://me:{PASSWORD}@127.0.0.1:9/"
  session_token: "${{oc.env:HOOK}}"
  timeout_s: 1
"""
REWARD = """
import os
LOGIN, TOKEN = os.environ["STORE_LOGIN"], os.environ["SOME_API_TOKEN"]

def good(response, answer):
    return float(response == answer)

def leaky(response, answer):
    raise RuntimeError(f"login {LOGIN} {LOGIN!r} refused: https://me:other-pass@host/x?token={TOKEN}")
"""
IMPORT = 'import os\nraise RuntimeError("no licence for " + os.environ["SOME_API_TOKEN"])\n'
OBSERVER = """
import logging, os, sys
import verl_core

logging.basicConfig(level=logging.DEBUG)
login = os.environ["STORE_LOGIN"]
trainer = verl_core.create_trainer(sys.argv[1], run_dir=sys.argv[2], overrides=["model.reward.name=rewards:good"])

def listen(result):
    raise RuntimeError(f"cannot tell {login}")

trainer.on("step_finished", listen)
trainer.run(until_step=1)
logging.getLogger("other.library").info("headers: {'Authorization': 'Bearer %s'}", login)
try:
    raise ValueError(login)
except ValueError:
    logging.getLogger("other.library").exception("sent to %s", login)
"""


class Place:
    """A config with planted secrets, and all that came out of the commands so far."""

    def __init__(self, tiny: Tiny, folder: Path) -> None:
        self.folder, self.run, self.config = folder, folder / "run", folder / "planted.yaml"
        text = re.sub(r"^storage: .*\n", "", tiny.config(2).read_text(), flags=re.MULTILINE)
        self.config.write_text(f"plugins: [local, s3]\n{text}{CONFIG}")
        (folder / "rewards.py").write_text(REWARD)
        (folder / "unlicensed.py").write_text(IMPORT)
        (folder / "observer.py").write_text(OBSERVER)
        self.printed: list[str] = []

    def cli(self, *arguments: str | Path) -> Result:
        return self._kept(runs.cli(*arguments, env={**ENV, "PYTHONPATH": str(self.folder)}))

    def start(self, command: str, reward: str, *more: str | Path) -> Result:
        return self.cli(
            command, "--config", self.config, "--run-dir", self.run, "--set", f"model.reward.name={reward}", *more
        )

    def script(self, name: str) -> Result:
        command = [sys.executable, str(self.folder / name), str(self.config), str(self.run)]
        env = {**runs.environ(), **ENV, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=runs.TIMEOUT_S, env=env, check=False)
        return self._kept(Result(done.returncode, done.stdout, done.stderr))

    def _kept(self, result: Result) -> Result:
        self.printed += [result.out, result.err]
        return result

    def leaks(self) -> list[str]:
        """Where any of the secrets stands, in any way of writing it, in what was printed or is on disk."""
        texts = {f"output {n}": text for n, text in enumerate(self.printed)}
        for file in self.run.rglob("*"):
            if file.is_file():
                data = file.read_bytes()
                data = zstandard.ZstdDecompressor().decompress(data) if file.suffix == ".zst" else data
                texts[str(file)] = data.decode("utf-8", "replace")
        return [f"{secret} in {name}" for name, text in texts.items() for secret in written() if secret in text]


def written() -> Iterator[str]:
    for secret in (TOKEN, KEY, PASSWORD, SESSION, "other-pass"):
        yield from {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(secret, safe="")}


pytestmark = pytest.mark.slow  # each command is a process of its own


@pytest.fixture
def place(tiny: Tiny, tmp_path: Path) -> Place:
    return Place(tiny, tmp_path)


def test_nothing_that_goes_well_shows_a_secret(place: Place) -> None:
    assert place.start("check", "rewards:good").out.endswith("are fine\n")
    assert place.start("run", "rewards:good", "--dry-run").out.count("***") >= 3
    done = place.start("run", "rewards:good")
    assert done.code == 0, done.err
    for command in ("status", "verify"):
        assert place.cli(command, place.run).code == 0
    assert place.leaks() == []
    copy = (place.run / "config.yaml").read_text()
    assert "${oc.env:STORE_LOGIN}" in copy
    assert "${oc.env:HOOK}" in copy
    assert "endpoint_url: '***'" in copy


def test_no_error_of_foreign_code_shows_a_secret(place: Place) -> None:
    done = place.start("run", "rewards:leaky")
    assert done.code == 5, done.err
    assert "login *** '***' refused: https://me:***@host/x?token=***" in done.out + done.err
    shown = place.cli("status", place.run)
    assert "login *** '***' refused" in shown.out
    assert "login *** '***' refused" in (place.run / "state_log.jsonl").read_text()
    assert place.start("run", "unlicensed:score").code == 2
    assert "no licence for ***" in place.printed[-1]
    assert place.leaks() == []


def test_no_error_of_a_store_or_of_the_config_shows_a_secret(place: Place) -> None:
    done = place.start("check", "rewards:good", "--set", "storage.checkpoint_uri=s3://bucket/planted")
    assert (done.code, "storage.checkpoint_uri: " in done.out) == (2, True)
    assert place.start("run", "rewards:good", "--set", "total_steps=${oc.env:STORE_LOGIN}").code == 2
    assert place.start("run", "rewards:good", "--set", f"storage.pasword={PASSWORD}x").code == 2
    assert place.leaks() == []


def test_no_log_record_shows_a_secret_whoever_writes_it(place: Place) -> None:
    done = place.script("observer.py")
    assert done.code == 0, done.err
    assert "cannot tell ***" in done.err
    assert "Bearer ***" in done.err
    assert "ValueError: ***" in done.err
    assert place.leaks() == []
