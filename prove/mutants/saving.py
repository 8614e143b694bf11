"""Defects of what decides when a step is saved: phases, volatility, milestones, and the age of the newest save."""

from __future__ import annotations

from .record import Mutant

WHEN = "core/verl_core/checkpoint/when.py"
AGE = "core/verl_core/checkpoint/age.py"
LOOP = "core/verl_core/loop.py"
MACHINE = "core/verl_core/state/machine.py"
HISTORY = "core/verl_core/state/history.py"
_ADAPTIVE = "tests/faults/test_adaptive_saves.py::"
_RULE = "tests/unit/test_save_rule.py::"
_AGE = "tests/unit/test_save_age.py::"

MUTANTS = (
    Mutant(
        "trend-forgotten-by-a-restart",
        MACHINE,
        "trend=m.plan.trend(event.step))",
        "trend=replace(BEGIN, step=event.step))",
        (f"{_ADAPTIVE}test_e7_a_run_killed_at_many_points_saves_at_the_steps_of_the_undisturbed_one",),
        "after a restart milestones and volatility are judged as if nothing had been trained yet (E7)",
    ),
    Mutant(
        "steps-not-redone-yet-counted",
        HISTORY,
        "for number in sorted(s for s in self.steps if s <= step):",
        "for number in sorted(self.steps):",
        (f"{_ADAPTIVE}test_a_run_that_lost_its_saves_decides_again_as_before",),
        "a run that goes back decides on saves by what it has not trained yet (E7)",
    ),
    Mutant(
        "volatile-interval-not-halved",
        WHEN,
        "max(1, started[-1] // 2) if self._volatile(trend)",
        "started[-1] if self._volatile(trend)",
        (f"{_RULE}test_the_interval_is_halved_while_the_loss_is_volatile_and_only_then",),
        "saves are as rare as ever while the loss jumps (E7)",
    ),
    Mutant(
        "mark-not-moved-by-a-milestone",
        WHEN,
        "return (mean, True) if fell",
        "return (mark, True) if fell",
        (f"{_RULE}test_a_loss_that_fell_by_the_share_is_a_milestone_and_the_next_counts_from_there",),
        "after one milestone of the loss every step is saved (E7)",
    ),
    Mutant(
        "kl-milestone-without-having-been-above",
        WHEN,
        'else "met" if above else ""',
        'else "met"',
        (f"{_RULE}test_the_kl_that_first_comes_down_to_its_target_is_a_milestone_once",),
        "the first step of every run is a milestone, and the one that matters is none (E7)",
    ),
    Mutant(
        "save-at-risk-not-asked-for",
        LOOP,
        "            self.save_requested = True\n            text",
        "            text",
        (f"{_AGE}test_e8_a_run_with_an_old_save_and_a_full_gpu_saves_by_itself_and_alerts",),
        "the alert says that the run saves, and it does not (E8)",
    ),
    Mutant(
        "age-not-counted-anew-by-a-save",
        LOOP,
        "                self.parts.save_age.saved(step, self.parts.cluster.now())\n",
        "",
        (f"{_AGE}test_a_run_that_is_not_at_risk_is_asked_for_nothing",),
        "saves that were just made count as old (E8)",
    ),
    Mutant(
        "risk-told-at-every-look",
        AGE,
        "        self._since = now\n        return f",
        "        return f",
        (f"{_AGE}test_an_old_save_and_a_full_gpu_together_are_a_risk_once_in_the_period",),
        "a full GPU makes the run save all the time (E8)",
    ),
    Mutant(
        "driver-waited-for",
        AGE,
        "            self._thread.start()\n",
        "            self._thread.start()\n            self._thread.join()\n",
        (f"{_AGE}test_a_driver_that_hangs_holds_nobody_and_is_not_asked_again",),
        "a driver that hangs holds the run (E8)",
    ),
)
