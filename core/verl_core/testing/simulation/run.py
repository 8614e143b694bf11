"""A whole simulation: attempts one after another until the hours are over, then the account."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from ...errors import ConfigError, SafeModeError, StorageError
from ...state.events import Confirmed
from ...state.folder import LOG
from ...state.history import fold
from ...state.journal import Journal, read_log, repair
from ...state.machine import State
from .attempt import Attempt, schedule_of
from .faults import Faults
from .report import Report, account
from .scenario import Scenario
from .world import ControllerKilled, SimulationOver, World
from .writes import SimulatedWrites

CALIBRATION_STEPS = 8


def simulate(scenario: Scenario) -> Report:
    """Play the scenario. Equal scenarios give equal reports, but for the seconds that they took.

    What the real parts raise against the promise (``DamagedError``, ``RunMismatch``) comes through.
    """
    ideal_s = undisturbed_step(scenario)
    begin = time.perf_counter()
    gap_s = scenario.mtbf_steps * ideal_s if scenario.mtbf_steps else scenario.mtbf_hours * 3600
    world = World.new(scenario)
    _play(world, gap_s)
    return account(world, schedule_of(scenario), ideal_s, time.perf_counter() - begin)


def undisturbed_step(scenario: Scenario) -> float:
    """Seconds of a step, its share of a save included, when nothing goes wrong: the median of the first few."""
    timing = scenario.timing
    step_s = timing.generate * 2 + timing.train + timing.weights
    world = World.new(replace(scenario, hours=step_s * CALIBRATION_STEPS / 3600))
    ends: list[float] = []
    _play(world, 0.0, ends)
    spans = [later - earlier for earlier, later in pairwise(ends)]
    if not spans:
        raise ConfigError("no step ends within the calibration", remedy="lower timing.generate_sigma or worker_start")
    every = scenario.fault_tolerance.checkpoint_interval_steps
    return statistics.median(spans) + (timing.copy_state / every if every else 0.0)


def _play(world: World, gap_s: float, ends: list[float] | None = None) -> None:
    """All attempts until the hours are over. ``ends``: filled with the virtual time of each finished step."""
    faults = Faults(world, gap_s)

    def over() -> None:
        faults.kill_controller()
        raise SimulationOver

    world.clock.after(world.scenario.hours * 3600, over)
    with suppress(SimulationOver):
        while True:
            safe_mode = _attempt(world, faults, ends)
            faults.attempt = None
            timing = world.scenario.timing
            world.clock.run(world.clock.now() + (timing.confirm if safe_mode else timing.controller_restart))
            if safe_mode:
                _confirm(world)


def _attempt(world: World, faults: Faults, ends: list[float] | None) -> bool:
    """One attempt to its end; whether that is SAFE_MODE."""
    try:
        faults.attempt = attempt = Attempt(world)
        if ends is not None:
            attempt.controller.parts.observers.add("step_finished", lambda _: ends.append(world.clock.now()))
        attempt.controller.run()
    except SafeModeError:
        world.seen["safe mode"] += 1
        return True
    except StorageError:
        world.seen["attempts ended by storage"] += 1
    except ControllerKilled:
        world.seen["attempts killed"] += 1
    finally:
        if faults.attempt is not None:
            world.messages += faults.attempt.cluster.messages
    return False


def _confirm(world: World) -> None:
    """What ``verl-core confirm`` does."""
    log = read_log(world.files, LOG)
    history = fold(log.entries)
    repair(world.files, LOG, log, history.attempt)
    writes = SimulatedWrites(world.clock, world.scenario.timing.write, patience_s=600)
    identity = (history.run_id, 0, history.attempt, "confirm")
    journal = Journal(world.files, LOG, log, writes, identity=identity, wall=world.clock.wall)
    journal.record(Confirmed.name, State.INIT, Confirmed("simulated person", "looked at it"))
    writes.close()
