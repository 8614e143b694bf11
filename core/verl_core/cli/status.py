"""``verl-core status``: where a run stands, from its state log alone."""

from __future__ import annotations

import time
from dataclasses import asdict
from statistics import mean
from typing import Annotated

import orjson
import typer

from ..rewards.models import described
from ..state.claim import read_controller
from ..state.history import History, fold
from ..state.journal import read_log
from .common import RunPlace, find_run


def status(
    run: Annotated[str, typer.Argument(help="Folder or URI of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show where a run stands. Reads only; the run may be live."""
    place = find_run(run)
    history = fold(read_log(place.log_storage, place.log_path).entries)
    facts = facts_of(place, history)
    if as_json:
        typer.echo(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(place, history, facts)


def facts_of(place: RunPlace, history: History) -> dict[str, object]:
    """What ``--json`` prints. ``policy_digest`` is that of ``step``; skipped steps are null."""
    controller = read_controller(place.storage)
    return {
        "run_id": history.run_id,
        "state": history.state,
        "step": history.step,
        "total_steps": history.total_steps,
        "policy_digest": history.policy_digest,
        "prompts_consumed": sum(
            len(history.batches[key].prompt_rows)
            for record in history.steps.values()
            if record.reward_mean is not None
            for key in record.keys
        ),
        "reward_mean": history.rewards,
        "last_checkpoint_step": max(history.checkpoints, default=None),
        "batches_committed": len(history.committed),
        "faults": history.fault_count,
        "safe_mode": history.state == "SAFE_MODE",
        "pid": controller.pid if controller is not None and controller.alive else None,
        "attempt": history.attempt,
        "branch": history.branch,
        "scored_by": {**asdict(history.reward), "scale": history.scale[0], "shift": history.scale[1]},
        "scored_since_step": history.swaps[-1].from_step if history.swaps else 1,
    }


def _show(place: RunPlace, history: History, facts: dict[str, object]) -> None:
    live = f"process {facts['pid']} is at work" if facts["pid"] else "no process"
    kept = [reward for reward in history.rewards if reward is not None]
    saved = history.checkpoints.get(max(history.checkpoints, default=-1))
    rows = {
        "run": f"{facts['run_id'] or '(nothing begun)'} in {place.storage.uri}",
        "state": f"{facts['state']}, {live}, attempt {facts['attempt']}",
        "step": f"{facts['step']} of {facts['total_steps']}",
        "reward": f"first {mean(kept[:10]):.3f}, last {mean(kept[-10:]):.3f} (means of ten)" if kept else "none yet",
        "scored by": f"{described(history.reward)}, since step {facts['scored_since_step']}",
        "prompts": f"{facts['prompts_consumed']} consumed in {facts['batches_committed']} batches",
        "checkpoint": f"step {saved.step}, {saved.bytes / 1e6:.1f} MB" if saved else "none",
        "condemned": ", ".join(history.condemned) or "nothing",
        "faults": str(facts["faults"]),
        "policy": str(facts["policy_digest"]),
    }
    if history.steps:
        rows["last step"] = f"{time.time() - history.steps[history.step].time:,.0f} s ago"
    for name, text in rows.items():
        typer.echo(f"{name:<12}{text}")
    for fault in history.recent:
        typer.echo(f"{'fault':<12}{fault}")
    if facts["safe_mode"]:
        typer.echo(f"SAFE_MODE: nothing goes on before `verl-core confirm {place.storage.uri} --name YOU --reason WHY`")
