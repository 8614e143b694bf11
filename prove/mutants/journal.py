"""Defects of the state log, of its queue, and of opening a run: broken chains, lost order, two controllers."""

from __future__ import annotations

from .record import Mutant

JOURNAL = "core/verl_core/state/journal.py"
LINES = "core/verl_core/state/lines.py"
FOLDER = "core/verl_core/state/folder.py"
CLAIM = "core/verl_core/state/claim.py"
HISTORY = "core/verl_core/state/history.py"
WRITES = "core/verl_core/writes.py"
ALERTS = "core/verl_core/alerts.py"
OBSERVERS = "core/verl_core/observers.py"
SPILL = "core/verl_core/state/spill.py"
SUPERVISE = "core/verl_core/cli/supervise.py"
_JOURNAL = "tests/unit/test_journal.py::"
_POINTS = "tests/faults/test_journal_points.py::"
_OPEN = "tests/faults/test_open_points.py::"
_REFUSALS = "tests/faults/test_run_refusals.py::"
_SPILL = "tests/faults/test_spill.py::"
_WRITES = "tests/unit/test_writes.py::"
_ORDER = "tests/unit/test_write_order.py::"

MUTANTS = (
    Mutant(
        "line-not-held-against-its-hash",
        LINES,
        "        if seal(fields)[0] != digest:",
        "        if False:",
        (f"{_JOURNAL}test_a_flipped_byte_anywhere_before_the_last_line_is_an_error_that_names_the_line",),
        "a flipped bit changes a decision of the past",
    ),
    Mutant(
        "chain-not-checked",
        LINES,
        "    if (entry.prev, entry.seq) != expected:",
        "    if False:",
        (f"{_JOURNAL}test_lines_swapped_or_taken_out_break_the_chain",),
        "lines that went missing are not missed",
    ),
    Mutant(
        "line-cut-short-trusted",
        LINES,
        '    if not line.endswith(b"\\n"):',
        "    if False:",
        (f"{_JOURNAL}test_c14_a_log_cut_at_any_byte_keeps_its_whole_lines_and_goes_on",),
        "the next line is written onto the end of the last one, and both are lost",
    ),
    Mutant(
        "damage-before-the-end-taken-for-torn",
        JOURNAL,
        "            if _was_durable(len(entries), lines[number:]):",
        "            if False:",
        (f"{_JOURNAL}test_a_flipped_byte_anywhere_before_the_last_line_is_an_error_that_names_the_line",),
        "one bad line in the middle cuts off everything behind it",
    ),
    Mutant(
        "torn-group-taken-for-damage",
        JOURNAL,
        "            if seq < (entry.seq if entry.durable is None else entry.durable):",
        "            if seq < entry.seq:",
        (f"{_JOURNAL}test_a_group_of_lines_torn_anywhere_is_no_damage",),
        "a power cut in the middle of an append, and the run can only be brought back from a backup",
    ),
    Mutant(
        "torn-tail-thrown-away",
        JOURNAL,
        "        storage.put(aside, log.torn)\n",
        "",
        (f"{_JOURNAL}test_a_torn_line_is_kept_aside",),
        "what a crash left of a line cannot be looked at any more",
    ),
    Mutant(
        "torn-tail-overwrites-an-earlier-one",
        JOURNAL,
        "        while storage.stat(aside) is not None and storage.get(aside) != log.torn:",
        "        while False:",
        (f"{_OPEN}test_a_start_that_fails_at_any_operation_gives_the_run_back",),
        "a second crash destroys what the first one left",
    ),
    Mutant(
        "torn-tail-left-in-place",
        JOURNAL,
        "        storage.truncate(path, log.size)\n",
        "",
        (f"{_POINTS}test_a_repair_killed_at_any_operation_keeps_all_lines_and_the_torn_one_aside",),
        "the next line joins the torn one, and the log ends there for good",
        also=(("            if there is not None and there.size != self._size:", "            if False:"),),
    ),
    Mutant(
        "cut-before-it-is-put-aside",
        JOURNAL,
        "        storage.put(aside, log.torn)\n        storage.truncate(path, log.size)",
        "        storage.truncate(path, log.size)\n        storage.put(aside, log.torn)",
        (f"{_POINTS}test_a_repair_killed_at_any_operation_keeps_all_lines_and_the_torn_one_aside",),
        "a kill within the repair loses the torn line",
    ),
    Mutant(
        "half-a-line-left-by-a-failed-append",
        JOURNAL,
        "            if there is not None and there.size != self._size:",
        "            if False:",
        (f"{_JOURNAL}test_a_failed_append_leaves_no_half_line_behind",),
        "one full disk, and the state log is unreadable from there on",
    ),
    Mutant(
        "failed-append-forgotten",
        JOURNAL,
        "        self._sure = False\n        self._storage.append",
        "        self._storage.append",
        (f"{_POINTS}test_with_patience_any_one_failure_is_ridden_out_and_no_line_doubled",),
        "a line whose answer was lost is written twice",
    ),
    # --- opening a run ------------------------------------------------------------------------
    Mutant(
        "lock-not-taken",
        CLAIM,
        "    if release is None:",
        "    release = release or (lambda: None)\n    if release is None:",
        (f"{_OPEN}test_a_second_start_is_refused_while_the_first_one_stands_anywhere",),
        "two controllers write one run",
    ),
    Mutant(
        "lock-given-back-early",
        FOLDER,
        "        release()\n        raise\n    return OpenRun(",
        "        release()\n        raise\n    release()\n    return OpenRun(",
        (f"{_OPEN}test_a_second_start_is_refused_while_the_first_one_stands_anywhere",),
        "two controllers write one run",
    ),
    Mutant(
        "lock-kept-after-a-failed-start",
        FOLDER,
        "        release()\n        raise\n    return OpenRun(",
        "        raise\n    return OpenRun(",
        (f"{_OPEN}test_a_start_that_fails_at_any_operation_gives_the_run_back",),
        "a library that tries again finds its own run busy",
    ),
    Mutant(
        "begun-over-existing-data",
        FOLDER,
        "    if lost:",
        "    if False:",
        (f"{_REFUSALS}test_c01_data_without_a_readable_state_log_is_never_begun_over",),
        "a lost log lets a run begin at step 0 over what was there (C01)",
    ),
    Mutant(
        "begun-over-checkpoints",
        FOLDER,
        'startswith(("epoch_", "step_"))',
        'startswith("epoch_")',
        (f"{_REFUSALS}test_c01_checkpoints_alone_are_never_begun_over",),
        "checkpoints of a lost run are replaced one by one (C01)",
    ),
    Mutant(
        "log-of-another-run-taken",
        FOLDER,
        "    if log.entries and history.run_id != read_run_id(storage):",
        "    if False:",
        (f"{_REFUSALS}test_a_state_log_of_another_run_is_refused",),
        "a run goes on from the decisions of another",
    ),
    Mutant(
        "resume-never-ignored",
        FOLDER,
        '    if log.entries and resume == "never":',
        "    if False:",
        (f"{_REFUSALS}test_resume_never_is_refused_on_a_folder_that_holds_a_run",),
        "who wanted a fresh run gets the old one",
    ),
    Mutant(
        "safe-mode-ends-with-a-restart",
        FOLDER,
        '    if history.state == "SAFE_MODE":',
        "    if False:",
        (
            "tests/faults/test_run_faults.py::"
            "test_c15_a_step_that_never_fits_ends_in_safe_mode_whatever_is_started_after_it",
        ),
        "a supervisor starts a sick run again and again (C15)",
    ),
    Mutant(
        "attempts-not-counted",
        FOLDER,
        "history.attempt + 1",
        "history.attempt",
        (f"{_OPEN}test_a_start_killed_at_any_operation_is_followed_by_one_that_finds_the_same_run",),
        "what a dead attempt left is taken for the work of the living",
    ),
    Mutant(
        "format-of-the-folder-not-checked",
        CLAIM,
        "    if found != FORMAT:",
        "    if False:",
        (f"{_OPEN}test_c13_a_folder_of_another_format_is_refused_with_the_reason",),
        "a folder of another version is read by the wrong rules (C13)",
    ),
    Mutant(
        "claim-not-compared",
        CLAIM,
        "    if found is not None:",
        "    if False:",
        (
            f"{_OPEN}test_of_two_that_claim_one_prefix_at_once_exactly_one_gets_it",
            f"{_REFUSALS}test_a_prefix_that_another_run_has_claimed_is_refused",
        ),
        "two runs commit into one folder",
    ),
    # --- what a restart remembers -------------------------------------------------------------
    Mutant(
        "retries-forgotten-by-a-restart",
        HISTORY,
        "        h.retry_times.append(e.time)",
        "        pass",
        ("tests/unit/test_history.py::test_c15_budgets_are_counted_across_restarts_until_a_person_confirms",),
        "a run that is restarted often enough never ends in SAFE_MODE (C15)",
    ),
    Mutant(
        "faults-forgotten-by-a-restart",
        HISTORY,
        '    h.faults.append((str(fault["kind"]), str(fault["scope"])))\n',
        "",
        ("tests/unit/test_history.py::test_c15_budgets_are_counted_across_restarts_until_a_person_confirms",),
        "the budget of a batch begins anew with each restart (C15)",
    ),
    Mutant(
        "deleted-checkpoints-remembered",
        HISTORY,
        "        h.checkpoints.pop(step, None)\n",
        "        pass\n",
        ("tests/unit/test_history.py::test_checkpoints_that_were_given_up_or_condemned_are_gone",),
        "a verification misses what was deleted on purpose",
    ),
    Mutant(
        "first-record-of-a-step-wins",
        HISTORY,
        "    h.steps[step] = StepRecord(\n        step,\n",
        "    if step in h.steps:\n        return\n    h.steps[step] = StepRecord(\n        step,\n",
        ("tests/unit/test_history.py::test_c16_a_step_that_is_run_again_counts_once_and_the_last_record_wins",),
        "metrics and digests are those of a policy that the run has left (C16)",
    ),
    # --- the queue ----------------------------------------------------------------------------
    Mutant(
        "writes-reordered",
        WRITES,
        "            group = [self._tasks.popleft()]",
        "            group = [self._tasks.pop()]",
        (f"{_WRITES}test_everything_happens_in_the_order_in_which_it_was_handed_in",),
        "a line is durable before the data that it speaks of",
    ),
    Mutant(
        "writes-go-on-after-an-error",
        WRITES,
        "            if self._error is None:\n                try:",
        "            if True:\n                try:",
        (f"{_WRITES}test_after_the_patience_nothing_later_is_written_and_the_caller_hears",),
        "the state log goes on behind a batch that could not be written",
    ),
    Mutant(
        "write-error-swallowed",
        WRITES,
        "                    self._error = error",
        "                    pass",
        (
            f"{_ORDER}test_an_error_stays_until_the_end_for_whoever_asks",
            f"{_WRITES}test_an_error_that_patience_does_not_mend_breaks_at_once",
        ),
        "training goes on for hours, and nothing of it is kept",
    ),
    Mutant(
        "barrier-does-not-wait",
        WRITES,
        "        if not task.done.wait(timeout_s):",
        "        if False:",
        (f"{_ORDER}test_a_barrier_returns_only_after_everything_before_it_is_done",),
        "effects take place before their line is durable",
    ),
    Mutant(
        "barrier-waits-for-ever",
        WRITES,
        "        if not task.done.wait(timeout_s):",
        "        if not task.done.wait(timeout_s + 3):",
        (f"{_ORDER}test_c07_who_waits_for_a_storage_that_never_answers_hears_of_it_within_the_deadline",),
        "a mount that hangs holds the run for hours, and nobody is told (C07)",
    ),
    Mutant(
        "lines-of-two-logs-mixed",
        WRITES,
        "self._tasks[0].sink is group[0].sink:",
        "self._tasks[0].sink is not None:",
        (f"{_ORDER}test_lines_of_two_logs_that_wait_together_go_each_to_its_own",),
        "a line lands in a file that it is not of",
    ),
    Mutant(
        "one-hiccup-ends-the-run",
        WRITES,
        "            retry=retry_if_exception_type(TRANSIENT),",
        "            retry=retry_if_exception_type(()),",
        (f"{_WRITES}test_a_full_disk_is_waited_for_and_told",),
        "a disk that is full for a second costs the run (C11)",
    ),
    # --- who is told --------------------------------------------------------------------------
    Mutant(
        "alert-before-the-decision-is-durable",
        ALERTS,
        "            writes.barrier()\n",
        "            pass\n",
        ("tests/unit/test_alerts.py::test_a_person_is_told_only_after_the_decision_is_durable",),
        "a person is told of a SAFE_MODE that the next start knows nothing of",
    ),
    Mutant(
        "dead-sink-ends-the-run",
        ALERTS,
        "            except (VerlError, OSError, ValueError) as error:",
        "            except ZeroDivisionError as error:",
        ("tests/unit/test_alerts.py::test_a_sink_that_fails_hurts_neither_the_run_nor_the_other_sinks",),
        "a chat server that is down stops training",
    ),
    Mutant(
        "observer-ends-the-run",
        OBSERVERS,
        "            except Exception as error:",
        "            except ZeroDivisionError as error:",
        ("tests/unit/test_observers.py::test_every_listener_runs_when_one_raises_and_errors_are_counted_and_logged",),
        "a mistake in a plugin that only watches stops training",
    ),
    Mutant(
        "safe-mode-restarted",
        SUPERVISE,
        "WORTH_A_RESTART = (1,)",
        "WORTH_A_RESTART = (1, 5)",
        ("tests/unit/test_supervise.py::test_what_a_restart_cannot_mend_is_not_restarted",),
        "a sick run is started again without a person having looked (C15)",
    ),
    Mutant(
        "restarts-without-end",
        SUPERVISE,
        "    for restart in range(max_restarts + 1):",
        "    for restart in range(max_restarts + 2):",
        ("tests/unit/test_supervise.py::test_restarts_end_when_their_number_is_spent",),
        "a controller that dies at once is started for ever",
    ),
    Mutant(
        "spilled-lines-forgotten",
        SPILL,
        "            self._behind += lines",
        "            pass",
        (f"{_SPILL}test_c4_lines_of_an_outage_wait_and_follow_in_order",),
        "what was recorded while the log's store was down is lost when it is back",
    ),
    Mutant(
        "spill-not-tried-as-it-was",
        SPILL,
        "            self._segments.write(self._tried)",
        '            self._tried, self._behind = self._tried + self._behind, b""\n'
        "            self._segments.write(self._tried)",
        (f"{_SPILL}test_c4_a_late_write_of_the_first_line_that_failed_changes_nothing",),
        "a late answer of the store is taken for another controller",
    ),
    Mutant(
        "spill-of-another-run-trusted",
        SPILL,
        "!= known[: len(lines)]:",
        "is None:",
        (f"{_SPILL}test_c4_lines_of_a_run_that_another_took_over_are_put_aside",),
        "lines of a run that another controller took over are written behind its own",
    ),
    Mutant(
        "spill-not-carried-over",
        FOLDER,
        "            carry_over(storage, log_storage, log_path)",
        "            pass",
        (f"{_SPILL}test_c4_a_run_ends_the_same_whenever_its_log_goes_down_and_whenever_it_dies_meanwhile",),
        "lines that waited when the controller was killed are lost",
    ),
)
