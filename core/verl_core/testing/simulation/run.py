"""A whole simulation: attempts one after another until the hours are over, then the account."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from ...errors import ConfigError, SafeModeError, StorageError
from ...state.events import Confirmed
from ...state.folder import LOG
from ...state.history import fold
from ...state.journal import Journal, read_log, repair
from ...state.machine import State
from ...state.schedule import Schedule
from .attempt import Attempt, schedule_of
from .cluster import generation_s
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
    undisturbed = Undisturbed.of(scenario)
    begin = time.perf_counter()
    gap_s = scenario.mtbf_steps * undisturbed.mean_s if scenario.mtbf_steps else scenario.mtbf_hours * 3600
    world = World.new(scenario)
    _play(world, gap_s)
    return account(world, undisturbed.schedule, undisturbed.seconds, time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The virtual time of steps when nothing goes wrong. Each has its own draws; the rest is the same for all."""

    scenario: Scenario
    schedule: Schedule
    rest_s: float = 0.0  # beside its slowest batch

    @classmethod
    def of(cls, scenario: Scenario) -> Undisturbed:
        """Play the first few steps without faults. Raises ConfigError when none ends."""
        timing, ends = scenario.timing, list[float]()
        hours = (timing.generate * 2 + timing.train + timing.weights) * CALIBRATION_STEPS / 3600
        _play(World.new(replace(scenario, hours=hours)), 0.0, ends)
        bare = cls(scenario, schedule_of(scenario))
        rests = [ends[step - 1] - ends[step - 2] - bare.seconds(step) for step in range(2, len(ends) + 1)]
        if not rests:
            remedy = "lower timing.generate_sigma or worker_start"
            raise ConfigError("no step ends within the calibration", remedy=remedy)
        every = scenario.fault_tolerance.checkpoint_interval_steps
        share = timing.copy_state / every if every > 1 else 0.0  # with a save each step it is in all of them
        return replace(bare, rest_s=statistics.median(rests) + share)

    def seconds(self, step: int) -> float:
        """Of a step, its share of a save included."""
        return self.rest_s + max(generation_s(self.scenario, key) for key in self.schedule.keys(step))

    @property
    def mean_s(self) -> float:
        return statistics.fmean(self.seconds(step) for step in range(1, CALIBRATION_STEPS + 1))


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
