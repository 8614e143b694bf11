"""Runs as a user starts them: the command line in a process of its own, and what they leave behind.

A run is named by its folder, or by its URI on an S3 server to which the environment leads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from verl_core.errors import ObjectMissing
from verl_core.protocols import Storage
from verl_core.state.claim import CONTROLLER
from verl_core.state.folder import LOG, ROLLOUTS
from verl_core.state.journal import read_log
from verl_core.state.segments import Names, folder_of
from verl_core.types import BuildContext
from verl_core_storage.local import LocalStorage

CLI = [sys.executable, "-m", "verl_core.cli.main"]
TIMEOUT_S = 240.0


@cache
def storage(run: Path | str) -> Storage:
    """The storage of a run, as a plugin opens it."""
    if isinstance(run, Path):
        return LocalStorage(str(run))
    from verl_core_storage.s3 import S3Config, build_s3

    return build_s3(S3Config(), BuildContext(uri=run))


def environ(more: dict[str, str] | None = None) -> dict[str, str]:
    """Variables of a command."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(more or {})}


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def cli(*arguments: str | Path, timeout_s: float = TIMEOUT_S, env: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, env=environ(env)
    )
    return Result(done.returncode, done.stdout, done.stderr)


def ok(*arguments: str | Path, timeout_s: float = TIMEOUT_S) -> str:
    """The output of a command that must succeed."""
    result = cli(*arguments, timeout_s=timeout_s)
    assert result.code == 0, f"{arguments} left with {result.code}:\n{result.out}\n{result.err}"
    return result.out


def start(*arguments: str | Path, log: Path, command: Sequence[str] = CLI) -> subprocess.Popen[bytes]:
    """A command in the background; its output goes to ``log``."""
    with open(log, "ab") as file:
        return subprocess.Popen([*command, *map(str, arguments)], stdout=file, stderr=file, env=environ())


def status(run: Path | str) -> dict[str, object]:
    facts: dict[str, object] = json.loads(ok("status", run, "--json"))
    return facts


def entries(run: Path | str) -> list[dict[str, object]]:
    """The whole lines of the state log."""
    if isinstance(run, str):
        return [asdict(entry) for entry in read_log(storage(run), LOG).entries]
    return [json.loads(line) for line in (run / LOG).read_bytes().splitlines()] if (run / LOG).exists() else []


def lines(run: Path | str) -> int:
    """How many lines of the state log are whole; in objects, the number at which the newest one begins."""
    if isinstance(run, str):
        return max(Names.of(stat.path for stat in storage(run).child(folder_of(LOG)).list()).segments, default=0)
    return (run / LOG).read_bytes().count(b"\n") if (run / LOG).exists() else 0


def batches(run: Path | str) -> dict[str, bytes]:
    """Committed batches by name: their samples, byte for byte."""
    root = storage(run).child(ROLLOUTS)
    found = (stat.path for stat in root.list() if stat.path.startswith("epoch_"))
    marked = [path.removesuffix("/SUCCESS") for path in found if path.endswith("/SUCCESS")]
    return {name: root.get(f"{name}/samples.jsonl") for name in sorted(marked)}


def prompt_order(run: Path | str) -> list[tuple[int, str]]:
    """(step, prompt) in the order in which training consumed them, last record of a step wins."""
    steps: dict[int, list[str]] = {}
    for entry in entries(run):
        if entry["event"] == "train_step_done":
            payload: dict[str, object] = entry["payload"]  # type: ignore[assignment]
            result: dict[str, int] = payload["result"]  # type: ignore[assignment]
            keys: list[dict[str, int]] = payload["keys"]  # type: ignore[assignment]
            steps[result["step"]] = [f"epoch_{k['epoch']}/batch_{k['batch']}" for k in keys]
    found = batches(run)
    order = []
    for step, names in sorted(steps.items()):
        for name in names:
            rows = [json.loads(line) for line in found[name].splitlines()[:-1]]
            order += [(step, prompt) for prompt in dict.fromkeys(row["prompt"] for row in rows)]
    return order


def generated_though_committed(run: Path | str) -> list[str]:
    """Batches that the state log sent to be generated after it knew them committed; must be none."""
    committed: set[str] = set()
    wrong = []
    for entry in entries(run):
        payload: dict[str, object] = entry["payload"]  # type: ignore[assignment]
        if entry["event"] == "rollout_complete":
            committed.add(json.dumps(payload["ref"]["key"]))  # type: ignore[index]
        if entry["event"] == "rollout_dispatched":
            wrong += [key for k in payload["generate"] if (key := json.dumps(k)) in committed]  # type: ignore[attr-defined]
    return wrong


def controller_pid(run: Path | str) -> int | None:
    """The process that holds the run, as it wrote it down."""
    try:
        return int(json.loads(storage(run).get(CONTROLLER))["pid"])
    except (ObjectMissing, ValueError):
        return None


def wait_for(condition: object, timeout_s: float, what: str) -> None:
    """Until ``condition()`` holds. Fails the test past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.005)
