"""Runs as a user starts them: the command line in a process of its own, and what they leave on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CLI = [sys.executable, "-m", "verl_core.cli.main"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def cli(*arguments: str | Path, timeout_s: float = TIMEOUT_S, env: dict[str, str] | None = None) -> Result:
    done = subprocess.run(
        [*CLI, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, env={**ENV, **(env or {})}
    )
    return Result(done.returncode, done.stdout, done.stderr)


def ok(*arguments: str | Path, timeout_s: float = TIMEOUT_S) -> str:
    """The output of a command that must succeed."""
    result = cli(*arguments, timeout_s=timeout_s)
    assert result.code == 0, f"{arguments} left with {result.code}:\n{result.out}\n{result.err}"
    return result.out


def start(*arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
    """A command in the background; its output goes to ``log``."""
    with open(log, "ab") as file:
        return subprocess.Popen([*CLI, *map(str, arguments)], stdout=file, stderr=file, env=ENV)


def status(run: Path) -> dict[str, object]:
    facts: dict[str, object] = json.loads(ok("status", run, "--json"))
    return facts


def entries(run: Path) -> list[dict[str, object]]:
    """The whole lines of the state log."""
    lines = (run / "state_log.jsonl").read_bytes().splitlines() if (run / "state_log.jsonl").exists() else []
    return [json.loads(line) for line in lines]


def lines(run: Path) -> int:
    """How many lines of the state log are whole."""
    log = run / "state_log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def batches(run: Path) -> dict[str, bytes]:
    """Committed batches by name: their samples, byte for byte."""
    found = sorted((run / "rollouts").glob("epoch_*/batch_*/SUCCESS"))
    return {str(f.parent.relative_to(run / "rollouts")): (f.parent / "samples.jsonl").read_bytes() for f in found}


def prompt_order(run: Path) -> list[tuple[int, str]]:
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


def generated_though_committed(run: Path) -> list[str]:
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


def controller_pid(run: Path) -> int | None:
    """The process that holds the run, as it wrote it down."""
    try:
        return int(json.loads((run / "controller.json").read_text())["pid"])
    except (FileNotFoundError, ValueError):
        return None


def wait_for(condition: object, timeout_s: float, what: str) -> None:
    """Until ``condition()`` holds. Fails the test past the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.005)
