"""``verl-core simulate``: hours of a run with thousands of workers and their faults, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import orjson
import typer

from ..errors import DamagedError
from ..testing.simulation import Report, load_scenario, scenario_names, simulate


def simulate_command(
    scenario: Annotated[
        str, typer.Option("--scenario", help=f"A YAML file, or one of: {', '.join(scenario_names())}.")
    ] = "default",
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Rollout workers.")] = None,
    hours: Annotated[float | None, typer.Option("--hours", help="Virtual hours.")] = None,
    mtbf_hours: Annotated[
        float | None, typer.Option("--mtbf-hours", help="Mean hours between faults of the whole cluster; 0: none.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Decides every fault.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Another key of the scenario: key=value, repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Play the real controller against a simulated cluster; leaves with 4 when the promise was broken."""
    given = {"rollout_workers": workers, "hours": hours, "mtbf_hours": mtbf_hours, "seed": seed}
    overrides = [f"{key}={value}" for key, value in given.items() if value is not None]
    if mtbf_hours is not None:
        overrides.append("mtbf_steps=0")
    report = simulate(load_scenario(scenario, [*overrides, *(set_ or [])]))
    if as_json:
        typer.echo(orjson.dumps({**asdict(report), "hours_per_second": report.hours_per_second}).decode())
    else:
        _show(report)
    if report.violations:
        raise DamagedError(
            f"the promise was broken: {'; '.join(report.violations)}",
            where=f"scenario {report.scenario}, seed {report.seed}",
            remedy="report it with scenario and seed, which replay it",
        )


def _show(report: Report) -> None:
    size = f"{report.rollout_workers:,} rollout workers, {report.train_ranks:,} training ranks"
    steps = f"{report.steps} in {report.hours:g} h, {report.undisturbed_step_s:.0f} s each undisturbed"
    rows = {
        "scenario": f"{report.scenario}, seed {report.seed}: {size}",
        "steps": f"{steps}; {report.steps_run_again} run again",
        "goodput": f"{report.goodput:.3f} (effective training time ratio)",
        "faults": f"{sum(report.faults.values())} injected: {_counts(report.faults)}",
        "recoveries": f"{sum(report.recoveries.values())}: {_counts(report.recoveries)}",
        "controller": f"{report.attempts} starts, {report.confirmations} confirmations by a person",
        "samples": f"{report.samples_lost} lost, {report.samples_repeated} repeated",
        "messages": f"{report.control_messages_per_step:,.0f} between controller and workers a step",
        "speed": f"{report.hours_per_second:.2f} simulated hours a second ({report.seconds:.1f} s)",
    }
    for name, text in rows.items():
        typer.echo(f"{name:<12}{text}")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
