"""Made data sets: ``reasoning_gym:NAME``, the same rows for the same (task, options, size, seed) in every process.

Some generators iterate over sets or draw from the global random state, so the rows are made in a child process with a
fixed hash seed. A row holds ``prompt``, ``answer`` and what the reward needs to score it: ``task``, ``task_options``
(JSON) and ``entry``, the library's record as JSON in which a tuple is written ``{"tuple": […]}``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version

from ..errors import DataError
from .fingerprint import Entry, Fingerprint, of_entries, sha256_of
from .source import Row

_TIMEOUT_S = 1800.0
_INSTALL = "pip install 'verl-core[reasoning-gym]'"


def make_rows(task: str, options: Mapping[str, object], size: int, seed: int) -> tuple[list[Row], Fingerprint]:
    """``size`` rows of a task and their fingerprint: what made them, the library's version, and what came out.

    Raises DataError: no such task, wrong options, library missing, or not finished within half an hour.
    """
    family, _, name = task.partition(":")
    if family != "reasoning_gym" or not name:
        raise DataError("not a task", where=task, remedy="set data.task to reasoning_gym:NAME")
    try:
        library = version("reasoning_gym")
    except PackageNotFoundError as error:
        raise DataError("reasoning-gym is not installed", where=task, remedy=_INSTALL) from error
    order = json.dumps({"name": name, "options": dict(options), "size": size, "seed": seed}, sort_keys=True)
    lines = _generate(order, task)
    shared = {"task": task, "task_options": json.dumps(dict(options), sort_keys=True)}
    rows = [Row({**json.loads(line), **shared}, f"{task} row {number}") for number, line in enumerate(lines)]
    data = "\n".join(lines).encode()
    return rows, of_entries([Entry(f"{task} {order} reasoning_gym {library}", len(data), sha256_of(data))])


def _generate(order: str, task: str) -> list[str]:
    command = [sys.executable, "-P", "-m", __name__]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=order, capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"not made within {_TIMEOUT_S:.0f} s", where=task, remedy="lower data.task_size") from error
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"cannot be made: {reason}", where=task, remedy="check data.task and data.task_options")
    return done.stdout.splitlines()


def _main() -> None:
    """The child: reads an order from standard input, writes one JSON row a line; the last line of an error counts."""
    order = json.load(sys.stdin)
    output, sys.stdout = sys.stdout, sys.stderr  # the library may print
    from reasoning_gym.factory import DATASETS, create_dataset

    name, seed = order["name"], order["seed"]
    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=3)
        raise SystemExit(f"no task {name!r} in reasoning_gym" + (f"; did you mean {', '.join(near)}?" if near else ""))
    dataset = create_dataset(name, size=order["size"], seed=seed, **order["options"])
    for index in range(order["size"]):
        random.seed(f"{seed} {index}")
        entry = dataset[index]
        row = {"prompt": entry["question"], "answer": entry["answer"] or "", "entry": json.dumps(_tagged(entry))}
        output.write(json.dumps(row) + "\n")


def _tagged(value: object) -> object:
    if isinstance(value, tuple):
        return {"tuple": [_tagged(item) for item in value]}
    if isinstance(value, list):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    return value


if __name__ == "__main__":
    _main()
