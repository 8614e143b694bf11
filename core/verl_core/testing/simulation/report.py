"""The account of a simulation: what it achieved, what went wrong, and whether the promise was kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from ...state.audit import consumption_errors
from ...state.folder import LOG
from ...state.history import History, fold
from ...state.journal import Entry, read_log
from ...state.schedule import Schedule
from .faults import KINDS
from .world import FIRST_POLICY, World, next_policy, samples_hash

RECOVERIES = ("retry_rollout", "retry_train", "rebuild")


@dataclass(frozen=True, slots=True)
class Report:
    """``goodput`` is the effective training time ratio: undisturbed time of the finished steps ÷ time that passed."""

    scenario: str
    seed: int
    hours: float
    rollout_workers: int
    train_ranks: int
    steps: int
    undisturbed_step_s: float
    goodput: float
    faults: Mapping[str, int]  # injected, by kind
    faults_seen: int  # by the controller
    recoveries: Mapping[str, int]  # carried out, by kind
    attempts: int
    confirmations: int  # of SAFE_MODE, by a person
    steps_run_again: int
    samples_lost: int
    samples_repeated: int
    violations: tuple[str, ...]  # of the promise; empty
    control_messages_per_step: float
    log_entries: int
    seconds: float  # of real time

    @property
    def hours_per_second(self) -> float:
        """Simulated hours in a second of real time."""
        return self.hours / self.seconds


def account(world: World, schedule: Schedule, undisturbed: Callable[[int], float], seconds: float) -> Report:
    """``undisturbed``: virtual seconds of a step when nothing goes wrong."""
    scenario = world.scenario
    entries = read_log(world.files, LOG).entries
    history = fold(entries)
    lost, repeated = _samples(history, schedule, scenario.samples_per_prompt)
    names = [entry.event for entry in entries]
    ideal_s = sum(map(undisturbed, range(1, history.step + 1)))
    return Report(
        scenario.name,
        scenario.seed,
        scenario.hours,
        scenario.rollout_workers,
        scenario.train_ranks,
        history.step,
        ideal_s / max(history.step, 1),
        ideal_s / (scenario.hours * 3600),
        {kind: world.seen[kind] for kind in KINDS if world.seen[kind]},
        history.fault_count,
        {name: names.count(name) for name in RECOVERIES if name in names},
        history.attempt,
        len(history.confirmations),
        names.count("train_step_done") - history.step,
        lost,
        repeated,
        tuple(_violations(world, schedule, history, entries)),
        world.messages / max(history.step, 1),
        len(entries),
        seconds,
    )


def _samples(history: History, schedule: Schedule, per_prompt: int) -> tuple[int, int]:
    """Samples of the schedule that no finished step consumed, and those that were consumed more than once."""
    consumed: dict[tuple[int, int], int] = {}
    for step in range(1, history.step + 1):
        for key in history.steps[step].keys if step in history.steps else ():
            for row in history.batches[key].prompt_rows if key in history.batches else ():
                consumed[key.epoch, row] = consumed.get((key.epoch, row), 0) + 1
    wanted = schedule.prompts_through(history.step)
    return (wanted - len(consumed)) * per_prompt, sum(count - 1 for count in consumed.values()) * per_prompt


def _violations(world: World, schedule: Schedule, history: History, entries: tuple[Entry, ...]) -> list[str]:
    found = [str(error) for error in consumption_errors(history)]
    policy = FIRST_POLICY
    for step in range(1, history.step + 1):
        hashes = [samples_hash(world.scenario.seed, key, step - 1, policy) for key in schedule.keys(step)]
        policy = next_policy(policy, step, hashes)
        if history.steps[step].policy_digest != policy:
            found.append(f"step {step} ended with another policy than the undisturbed run")
            break
    if world.seen["mixes"]:
        found.append(f"{world.seen['mixes']} batches were made a second time with other content")
    return found + _generated_again(entries)


def _generated_again(entries: tuple[Entry, ...]) -> list[str]:
    """Batches that were sent to be generated although the state log knew them committed."""
    committed: set[tuple[int, int]] = set()
    again = []
    for entry in entries:
        if entry.event == "rollout_complete":
            ref = cast(Mapping[str, Mapping[str, int]], entry.payload["ref"])
            committed.add((ref["key"]["epoch"], ref["key"]["batch"]))
        if entry.event == "rollout_dispatched":
            sent = cast(list[Mapping[str, int]], entry.payload["generate"])
            again += [key for k in sent if (key := (k["epoch"], k["batch"])) in committed]
    return [f"{len(again)} batches were generated though committed, the first {again[0]}"] if again else []
