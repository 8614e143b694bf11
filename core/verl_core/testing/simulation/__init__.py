"""The real controller, state machine, policies and state log against a simulated cluster, in virtual time.

``simulate(scenario)`` plays hours of a run with thousands of workers in seconds: nodes are lost or cut off, workers
hang and slow down, storage fails, clocks jump, the controller is killed. One seed decides it all, so that a report can
be had again. Simulated are workers (how long work takes, what they commit), nodes and the store; all else is real.
"""

from .report import Report
from .run import simulate
from .scenario import FaultMix, Scenario, Timing, load_scenario, scenario_names

__all__ = ["FaultMix", "Report", "Scenario", "Timing", "load_scenario", "scenario_names", "simulate"]
