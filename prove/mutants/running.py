"""Defects of the loop and of what it decides: cursors, deadlines, budgets, stale weights, effects before their line."""

from __future__ import annotations

from .record import Mutant

LOOP = "core/verl_core/loop.py"
ACTIONS = "core/verl_core/actions.py"
FLEET = "core/verl_core/fleet.py"
WORKERS = "core/verl_core/workers.py"
MACHINE = "core/verl_core/state/machine.py"
WHEN = "core/verl_core/checkpoint/when.py"
SUPERVISOR = "core/verl_core/recovery/supervisor.py"
ASSEMBLE = "core/verl_core/assemble.py"
RETRY = "plugins/recovery/verl_core_recovery/retry.py"
REBUILD = "plugins/recovery/verl_core_recovery/rebuild.py"
INLINE = "plugins/engines/verl_core_engines/inline.py"
_FAULTS = "tests/faults/test_run_faults.py::"
_ORDER = "tests/faults/test_run_order.py::"
_POINTS = "tests/faults/test_run_points.py::"
_REFUSALS = "tests/faults/test_run_refusals.py::"
_MACHINE = "tests/unit/test_machine.py::"
_FLEET = "tests/unit/test_fleet.py::"
_SUPERVISOR = "tests/unit/test_supervisor.py::"

MUTANTS = (
    # --- the cursor ---------------------------------------------------------------------------
    Mutant(
        "cursor-ahead-of-training",
        MACHINE,
        "    return _next_step(replace(m, step=event.step, trend",
        "    return _next_step(replace(m, step=event.step + (event.step > 0), trend",
        (f"{_POINTS}test_c02_a_run_stopped_after_every_step_of_three_epochs_is_the_same",),
        "each restart skips a step and its prompts (C06)",
    ),
    Mutant(
        "cursor-behind-training",
        MACHINE,
        "    return _next_step(replace(m, step=event.step, trend",
        "    return _next_step(replace(m, step=max(0, event.step - 1), trend",
        (f"{_POINTS}test_c02_a_run_stopped_after_every_step_of_three_epochs_is_the_same",),
        "each restart trains a step twice on top of its own weights",
    ),
    Mutant(
        "trained-before-all-batches-are-there",
        MACHINE,
        "    return m, () if m.pending else (ev.Emit(ev.DataAvailable(m.step + 1)),)",
        "    return m, (ev.Emit(ev.DataAvailable(m.step + 1)),)",
        (f"{_ORDER}test_nothing_is_trained_on_before_all_batches_of_its_step_are_there",),
        "a step goes on without its last batch",
    ),
    Mutant(
        "late-batch-counted-again",
        MACHINE,
        "    if event.ref.key not in m.pending:\n        return m, ()\n",
        "",
        (f"{_MACHINE}test_a_batch_that_comes_late_changes_nothing",),
        "a late answer starts the training step a second time",
    ),
    Mutant(
        "last-step-not-saved",
        MACHINE,
        "    save = step == m.plan.last_step or m.plan",
        "    save = m.plan",
        (f"{_MACHINE}test_an_undisturbed_run_visits_the_states_in_order_and_saves_at_its_interval_and_end",),
        "the end of a run is lost with its process",
    ),
    Mutant(
        "interval-off-by-one",
        WHEN,
        "trend.step % interval == 0",
        "trend.step % interval == 1",
        (f"{_MACHINE}test_an_undisturbed_run_visits_the_states_in_order_and_saves_at_its_interval_and_end",),
        "saves come at other steps than configured (C11)",
    ),
    Mutant(
        "generated-again-although-committed",
        ACTIONS,
        "        missing = tuple(key for key in keys if key not in committed)",
        "        missing = tuple(keys)",
        (f"{_POINTS}test_c08_what_is_committed_is_never_generated_again",),
        "a restart throws away the most expensive part of the work (C08)",
    ),
    Mutant(
        "trained-in-another-order",
        ACTIONS,
        "self._parts.committed[key] for key in self._parts.plan.schedule.keys(step))",
        "self._parts.committed[key] for key in sorted(self._parts.plan.schedule.keys(step), reverse=True))",
        (f"{_POINTS}test_training_is_given_the_batches_of_its_step_in_the_order_of_the_schedule",),
        "samples reach the optimizer in another order than the state log says",
    ),
    # --- deadlines and budgets ----------------------------------------------------------------
    Mutant(
        "deadlines-never-pass",
        LOOP,
        "        if now >= self.machine.deadline:",
        "        if False:",
        (f"{_FAULTS}test_c05_a_worker_that_hangs_is_replaced_when_its_deadline_has_passed",),
        "one worker that hangs holds the run for ever (C05)",
    ),
    Mutant(
        "waits-without-a-deadline",
        MACHINE,
        'deadline=now + machine.plan.timeout_s.get(new.state, float("inf"))',
        'deadline=float("inf")',
        (
            f"{_MACHINE}test_no_order_of_faults_and_decisions_leaves_it_stuck",
            f"{_FAULTS}test_c05_a_training_step_that_hangs_is_given_up_when_its_deadline_has_passed",
        ),
        "one rank that hangs holds the run for ever (C05)",
    ),
    Mutant(
        "all-batches-rescheduled",
        MACHINE,
        "    keys = tuple(k for k in event.keys if k in m.pending)",
        "    keys = m.plan.schedule.keys(m.step + 1)",
        (f"{_MACHINE}test_only_missing_batches_are_rescheduled_after_a_timeout",),
        "one late batch repeats the generation of all",
    ),
    Mutant(
        "fault-nobody-takes-ignored",
        MACHINE,
        "    else:\n        return replace(m, state=State.SAFE_MODE), ()\n    return m, (ev.Emit(follow),)",
        "    else:\n        return m, ()\n    return m, (ev.Emit(follow),)",
        ("tests/unit/test_machine_decisions.py::test_a_decision_for_safe_mode_is_carried_out_in_every_state",),
        "a run that nothing can mend waits for ever",
    ),
    Mutant(
        "decision-leads-out-of-safe-mode",
        MACHINE,
        "    if m.terminal:\n        return m, ()\n",
        "",
        ("tests/unit/test_machine_decisions.py::test_no_decision_leads_out_of_an_end",),
        "a decision that comes late sets a sick run going again (C15)",
    ),
    Mutant(
        "budget-of-a-scope-not-counted",
        SUPERVISOR,
        "if (kind, scope) == (fault.kind, fault.scope)) - 1",
        "if False) - 1",
        (f"{_SUPERVISOR}test_a_batch_that_never_comes_is_rescheduled_three_times_then_a_person_must_look",),
        "a batch that never works is tried for ever (C15)",
    ),
    Mutant(
        "budget-of-the-window-not-counted",
        SUPERVISOR,
        "if now - t <= limits.window_sec)",
        "if now - t > limits.window_sec)",
        (f"{_SUPERVISOR}test_c15_many_different_batches_that_fail_spend_the_budget_of_the_window",),
        "a cluster that fails everywhere is retried for ever (C15)",
    ),
    Mutant(
        "rebuilds-not-counted",
        SUPERVISOR,
        "        history.rebuilt.count(fault.scope),",
        "        0,",
        (f"{_FAULTS}test_c15_a_training_group_that_keeps_losing_ranks_ends_in_safe_mode",),
        "a training group that cannot stand is started for ever (C15)",
    ),
    Mutant(
        "one-retry-too-many",
        RETRY,
        "history.same_scope >= limit",
        "history.same_scope > limit",
        ("tests/unit/test_retry.py::test_no_scope_and_no_window_gets_more_than_its_budget",),
        "a budget means more than it says",
    ),
    Mutant(
        "window-ignored-by-the-policy",
        RETRY,
        " or history.in_window >= history.retries_per_window",
        "",
        ("tests/unit/test_retry.py::test_no_scope_and_no_window_gets_more_than_its_budget",),
        "a cluster that fails everywhere is retried for ever (C15)",
    ),
    Mutant(
        "unmended-fault-without-safe-mode",
        SUPERVISOR,
        '    return Decision("safe_mode", f"no recovery policy',
        '    return Decision("retry", f"no recovery policy',
        (f"{_SUPERVISOR}test_a_batch_that_never_comes_is_rescheduled_three_times_then_a_person_must_look",),
        "a fault that nobody takes is retried for ever (C15)",
    ),
    Mutant(
        "bad-input-retried-like-a-fault",
        LOOP,
        "        if isinstance(reply.error, InputError | DamagedError):\n            raise reply.error\n",
        "",
        (f"{_FAULTS}test_bad_input_and_damage_that_a_worker_finds_end_the_run_and_are_not_retried",),
        "what no retry can mend is not named, and a budget is spent on trying",
    ),
    Mutant(
        "batch-made-again-not-compared",
        ACTIONS,
        "        if known is not None and known.samples_hash != ref.samples_hash:",
        "        if False:",
        (f"{_FAULTS}test_a_batch_that_is_made_again_on_the_same_platform_must_be_the_same",),
        "a broken machine replaces what it made by something else, and nobody sees it",
    ),
    Mutant(
        "condemned-batch-still-counted",
        ACTIONS,
        "            del parts.committed[ref.key]\n",
        "",
        (f"{_FAULTS}test_a_batch_that_was_damaged_is_made_again_and_never_trained_on",),
        "a batch that was put aside is waited for in vain",
    ),
    Mutant(
        "batch-condemned-before-it-is-on-record",
        ACTIONS,
        "        parts.writes.barrier()\n        for ref in damaged:",
        "        for ref in damaged:",
        (f"{_ORDER}test_a_damaged_batch_is_condemned_on_record_before_it_is_moved",),
        "a committed batch is gone, and no line says why",
    ),
    # --- weights ------------------------------------------------------------------------------
    Mutant(
        "stale-weights-marked-fresh",
        FLEET,
        "        stale = [w for w in self.rollout if self._version.get(w) != version]",
        "        stale = [w for w in self.rollout if w not in self._version]",
        (f"{_FLEET}test_each_version_is_sent_once_to_every_worker",),
        "workers go on with the first policy that they were sent",
    ),
    Mutant(
        "replaced-worker-marked-fresh",
        FLEET,
        "        self._cluster.spawn(worker, self._factory(worker))\n        self._version.pop(worker, None)",
        "        self._cluster.spawn(worker, self._factory(worker))",
        (
            f"{_FLEET}test_a_worker_that_was_replaced_is_sent_the_weights_again_and_the_others_are_not",
            f"{_FAULTS}test_c05_a_batch_whose_worker_fails_or_is_lost_is_made_by_one_that_has_the_weights",
        ),
        "a worker that came back generates with the base model",
    ),
    Mutant(
        "failed-weights-marked-fresh",
        FLEET,
        "            self._version.pop(call.worker, None)  # they are sent again before it generates",
        "            pass",
        (f"{_FLEET}test_a_worker_that_could_not_take_the_weights_is_sent_them_again",),
        "a worker that took half of the weights spends its budget without ever getting the rest",
    ),
    Mutant(
        "held-batches-forgotten",
        FLEET,
        "        return tuple(sorted(lost | set(keys)))",
        "        return tuple(sorted(set(keys)))",
        (f"{_FLEET}test_who_holds_a_missing_batch_is_replaced_and_all_that_it_held_is_missing",),
        "batches of a worker that was given up are waited for in vain",
    ),
    Mutant(
        "calls-of-a-replaced-worker-kept",
        FLEET,
        "        self.calls = {n: c for n, c in self.calls.items() if c.worker != worker}",
        "        pass",
        (f"{_FLEET}test_what_a_replaced_worker_says_is_not_heard",),
        "a late answer of a worker that was given up counts",
    ),
    Mutant(
        "version-of-the-worker-not-checked",
        WORKERS,
        "        if have != spec.policy_version:",
        "        if False:",
        (f"{_FAULTS}test_weights_that_are_not_those_of_the_version_are_never_sampled_from",),
        "samples of a stale policy are committed under a new version",
    ),
    Mutant(
        "dead-workers-answer-heard",
        INLINE,
        "            if self._threads.get(reply.worker) is thread:",
        "            if True:",
        ("tests/unit/test_inline.py::test_a_killed_worker_is_not_heard_and_its_successor_is",),
        "an answer of a worker that was given up is taken for its successor's",
    ),
    Mutant(
        "groups-of-batches-mixed",
        WORKERS,
        "        numbers.append(groups.setdefault((ref.key, sample.row), len(groups)))",
        "        numbers.append(groups.setdefault((BatchKey(0, 0), sample.index), len(groups)))",
        ("tests/unit/test_workers.py::test_samples_of_one_prompt_occurrence_share_a_group_and_no_others_do",),
        "advantages are taken over samples of different prompts",
    ),
    Mutant(
        "step-taken-twice",
        WORKERS,
        "        if self._version >= call.step:",
        "        if False:",
        ("tests/unit/test_workers.py::test_a_step_that_was_taken_is_never_taken_again",),
        "a call that comes twice trains twice",
    ),
    Mutant(
        "version-forgotten-by-a-load",
        WORKERS,
        "            self._version = checkpoint.step\n",
        "",
        (f"{_POINTS}test_c02_a_run_stopped_after_every_step_of_three_epochs_is_the_same",),
        "weights come back, but the counter restarts at 0 (C10)",
    ),
    Mutant(
        "optimizer-not-loaded",
        WORKERS,
        "            for component in COMPONENTS:",
        "            for component in COMPONENTS[:1]:",
        (f"{_POINTS}test_c02_c10_a_run_resumed_from_any_checkpoint_of_three_epochs_is_the_same",),
        "weights come back, but the optimizer begins anew (C10)",
    ),
    # --- what is done again -------------------------------------------------------------------
    Mutant(
        "loaded-policy-not-compared",
        ACTIONS,
        "        if known and known != loaded.policy_digest:",
        "        if False:",
        (f"{_FAULTS}test_c17_weights_that_do_not_come_back_are_an_error_and_nothing_is_trained",),
        "tensors that were lost on the way are trained on (C17)",
    ),
    Mutant(
        "replay-not-compared",
        ACTIONS,
        "        if known is not None and known.policy_digest != result.policy_digest:",
        "        if False:",
        (f"{_FAULTS}test_a_step_run_again_on_the_same_platform_must_give_the_same_policy",),
        "a broken machine changes the past, and nobody sees it",
    ),
    Mutant(
        "replay-may-differ-anywhere",
        ACTIONS,
        "same_platform(known.attempt, parts.attempt):\n                remedy",
        "same_platform(known.attempt, -1):\n                remedy",
        (f"{_FAULTS}test_a_step_run_again_on_the_same_platform_must_give_the_same_policy",),
        "a broken machine is taken for another platform",
    ),
    Mutant(
        "schedule-of-found-batches-not-compared",
        ASSEMBLE,
        "        if (ref.policy_version, ref.prompt_rows) != (spec.policy_version, spec.rows):",
        "        if False:",
        (f"{_REFUSALS}test_a_committed_batch_that_the_schedule_does_not_want_is_refused",),
        "a batch of another schedule is trained on",
    ),
    # --- durable before effect ----------------------------------------------------------------
    Mutant(
        "swept-before-the-attempt-is-on-record",
        ACTIONS,
        "        parts.writes.barrier()  # what led here is on record before it changes anything\n",
        "",
        (f"{_ORDER}test_an_attempt_is_on_record_before_it_sweeps_what_others_left",),
        "work of another attempt is deleted by one that no line knows",
    ),
    Mutant(
        "deleted-before-it-is-on-record",
        ACTIONS,
        '                self._note("checkpoints_deleted", {"steps": [old.step for old in saved.expired]})\n'
        "                parts.keeper.delete(saved.expired)\n",
        "                parts.keeper.delete(saved.expired)\n"
        '                self._note("checkpoints_deleted", {"steps": [old.step for old in saved.expired]})\n',
        (f"{_ORDER}test_a_line_is_written_after_its_data_and_before_its_effects",),
        "after a kill the state log names a checkpoint that is gone",
    ),
    Mutant(
        "transitions-not-on-record",
        LOOP,
        "            self.note(event.name, event)\n            self._observe(event)\n",
        "            self._observe(event)\n",
        (f"{_ORDER}test_a_line_is_written_after_its_data_and_before_its_effects",),
        "transitions take effect that no line knows of",
    ),
    Mutant(
        "journal-after-effect",
        LOOP,
        "            self.note(event.name, event)\n            self._observe(event)\n",
        "            self._observe(event)\n",
        (f"{_ORDER}test_a_line_is_written_after_its_data_and_before_its_effects",),
        "a checkpoint of a step is there before the step is on record",
        also=(
            (
                "            except WorkerError as error:  # of the training group",
                "                self.note(event.name, event)\n"
                "            except WorkerError as error:  # of the training group",
            ),
        ),
    ),
)
