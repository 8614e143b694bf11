"""``verl-core status``: where a run stands, from its state log alone."""

from __future__ import annotations

import time
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table

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
    }


def _show(place: RunPlace, history: History, facts: dict[str, object]) -> None:
    table = Table.grid(Column(), Column(overflow="fold"), padding=(0, 2))
    live = f"process {facts['pid']} is at work" if facts["pid"] else "no process"
    table.add_row("run", f"{facts['run_id'] or '(nothing begun)'} in {place.storage.uri}")
    table.add_row("state", f"{facts['state']}, {live}, attempt {facts['attempt']}")
    table.add_row("step", f"{facts['step']} of {facts['total_steps']}")
    kept = [r for r in history.rewards if r is not None]
    if kept:
        first, last = kept[:10], kept[-10:]
        table.add_row("reward", f"first {sum(first) / len(first):.3f}, last {sum(last) / len(last):.3f} (means of ten)")
    table.add_row("prompts", f"{facts['prompts_consumed']} consumed in {facts['batches_committed']} batches")
    saved = history.checkpoints.get(max(history.checkpoints, default=-1))
    table.add_row("checkpoint", f"step {saved.step}, {saved.bytes / 1e6:.1f} MB" if saved else "none")
    table.add_row("faults", f"{facts['faults']}, condemned: {', '.join(history.condemned) or 'nothing'}")
    table.add_row("policy", str(facts["policy_digest"]))
    if history.steps:
        age = time.time() - history.steps[history.step].time
        table.add_row("last step", f"{age:,.0f} s ago")
    Console(highlight=False).print(table, markup=False)
    if facts["safe_mode"]:
        typer.echo("SAFE_MODE: nothing goes on before `verl-core confirm RUN --name YOU --reason WHY`")
