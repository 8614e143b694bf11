"""Simulated clusters: a day with a thousand workers, the published scenarios, then small clusters by many seeds."""

from __future__ import annotations

import time

from verl_core.errors import VerlError
from verl_core.testing.simulation import Report, load_scenario, simulate

SMALL = ["rollout_workers=24", "train_ranks=8", "hours=8", "faults.controller=2"]


def prove(seed: int, budget_s: float) -> dict[str, int | float | list[str]]:
    """Always the three large ones, then as many small ones as ``budget_s`` has room for."""
    begin = time.monotonic()
    found: list[str] = []
    day = _played("default", [f"seed={seed}"], found)
    robust = _played("robustrl-256", [f"seed={seed}"], found)
    llama = _played("llama3-16384", [f"seed={seed}"], found)
    hours, faults = sum(r.hours for r in (day, robust, llama) if r), 0
    for number in range(10_000):
        if time.monotonic() - begin > budget_s:
            break
        report = _played("default", [*SMALL, f"seed={seed + number}"], found)
        hours += report.hours if report else 0
        faults += sum(report.faults.values()) if report else 0
    figures: dict[str, int | float | list[str]] = {"simulated_hours": hours, "violations": found}
    figures["simulated_faults"] = faults + sum(sum(r.faults.values()) for r in (day, robust, llama) if r)
    for name, large in (("day_of_1000", day), ("robustrl_256", robust), ("llama3_16384", llama)):
        if large is not None:
            figures[f"{name}_goodput"] = round(large.goodput, 4)
            figures[f"{name}_seconds"] = round(large.seconds, 1)
    return figures


def _played(name: str, overrides: list[str], found: list[str]) -> Report | None:
    where = f"verl-core simulate --scenario {name} " + " ".join(f"--set {text}" for text in overrides)
    try:
        report = simulate(load_scenario(name, overrides))
    except VerlError as error:
        found.append(f"{where}: {error}")
        return None
    found.extend(f"{where}: {violation}" for violation in report.violations)
    if report.samples_lost or report.samples_repeated:
        found.append(f"{where}: {report.samples_lost} samples lost, {report.samples_repeated} repeated")
    return report
