"""Defects on stores that cannot rename: names created twice, two controllers, folds that lose lines."""

from __future__ import annotations

from .record import Mutant

COMMITTED = "core/verl_core/committed.py"
WRITER = "core/verl_core/rollout/objects.py"
LISTING = "core/verl_core/rollout/listing.py"
SHELF = "core/verl_core/checkpoint/objects.py"
SEGMENTS = "core/verl_core/state/segments.py"
LEASE = "core/verl_core/state/lease.py"
_COMMITS = "tests/faults/test_object_commits.py::"
_WRITER = "tests/unit/test_object_writer.py::"
_SAVES = "tests/faults/test_object_saves.py::"
_JOURNAL = "tests/faults/test_object_journal.py::"
_RUNS = "tests/faults/test_object_runs.py::"

MUTANTS = (
    Mutant(
        "object-created-over-another",
        COMMITTED,
        "            storage.put(path, data, if_absent=True)",
        "            storage.put(path, data)",
        (f"{_WRITER}test_create_tells_whose_the_object_is",),
        "a late worker replaces what training has read",
    ),
    Mutant(
        "unclear-answer-taken-for-failure",
        COMMITTED,
        "    except _UNCLEAR as error:",
        "    except ObjectExists as error:",
        (f"{_WRITER}test_a_call_without_a_clear_answer_is_decided_by_looking",),
        "a controller that did write believes that it was replaced",
    ),
    Mutant(
        "object-batch-marked-before-its-data",
        WRITER,
        "                ref, alone = self._commit_in(folder, staged)",
        '                self._create(f"{folder}{SUCCESS}", b"")\n'
        "                ref, alone = self._commit_in(folder, staged)",
        (f"{_COMMITS}test_b2_a_worker_that_dies_at_any_operation_leaves_a_whole_batch_or_none_and_the_next_goes_on",),
        "a reader finds SUCCESS beside nothing",
    ),
    Mutant(
        "record-of-the-loser-beside-data-of-the-winner",
        WRITER,
        "made = staged if samples is None else self._made_of(folder, samples, staged)",
        "made = staged",
        (f"{_COMMITS}test_b3_of_two_workers_interleaved_at_every_pair_of_operations_one_wins_and_nothing_is_mixed",),
        "two workers mix their batch",
    ),
    Mutant(
        "object-not-read-back",
        WRITER,
        "        if read is not None and read() != made.files[SAMPLES]:",
        "        if False:",
        (f"{_WRITER}test_what_does_not_read_back_is_not_committed",),
        "what was spoiled on the way is committed",
    ),
    Mutant(
        "object-of-other-draws-adopted",
        WRITER,
        "        self._records.check_draws(folder, samples, staged)\n",
        "",
        (f"{_WRITER}test_what_is_of_another_schedule_is_never_adopted",),
        "a batch drawn under another seed is taken for the one of the schedule",
    ),
    Mutant(
        "record-of-other-samples-accepted",
        WRITER,
        "            if ref.samples_hash != made.ref.samples_hash:",
        "            if False:",
        (f"{_WRITER}test_a_record_of_other_samples_is_damage_and_condemned_by_the_next_sweep",),
        "a batch is committed that nobody can load",
    ),
    Mutant(
        "condemned-object-counts",
        LISTING,
        "    if SUCCESS in names and CONDEMNED_MARK not in names:",
        "    if SUCCESS in names:",
        (f"{_WRITER}test_the_folder_that_counts_and_the_one_that_is_free",),
        "a damaged batch is found again at every start",
    ),
    Mutant(
        "two-saves-both-count",
        SHELF,
        "        return found is None",
        "        return True",
        (f"{_SAVES}test_two_saves_interleaved_at_every_pair_of_operations_agree_on_one",),
        "the state log names another checkpoint than the store",
    ),
    Mutant(
        "sweep-takes-the-checkpoint-that-counts",
        SHELF,
        "if dead and path != picked and",
        "if dead and",
        (f"{_SAVES}test_c03_c14_with_one_kept_a_good_checkpoint_stands_at_every_moment",),
        "a restart deletes the checkpoint that it is about to load",
    ),
    Mutant(
        "sweep-takes-the-save-of-the-living",
        SHELF,
        "_attempt(folder) < self._identity.attempt",
        "_attempt(folder) <= self._identity.attempt",
        (f"{_SAVES}test_a_sweep_leaves_living_and_later_attempts_alone",),
        "files disappear under the save that is writing them",
    ),
    Mutant(
        "retention-takes-a-later-save",
        SHELF,
        "        if folder is not None and ref.attempt not in (",
        "        if False and ref.attempt not in (",
        (f"{_SAVES}test_delete_is_harmless_twice_and_leaves_a_later_save_alone",),
        "a step that was saved anew is deleted in place of the old one",
    ),
    Mutant(
        "mark-outlives-its-checkpoint",
        SHELF,
        '        self._storage.delete(f"{ref.name}/{SUCCESS}")\n        crash.point("delete.unmarked")',
        '        crash.point("delete.unmarked")',
        (f"{_SAVES}test_c03_c14_with_one_kept_a_good_checkpoint_stands_at_every_moment",),
        "a folder is marked and has lost its data (C04)",
    ),
    # --- the state log ------------------------------------------------------------------------
    Mutant(
        "fence-not-looked-at",
        SEGMENTS,
        '        if found is not None:\n            where = f"{self._storage.uri}/{self._folder}/{name}"',
        '        if False:\n            where = f"{self._storage.uri}/{self._folder}/{name}"',
        (f"{_JOURNAL}test_of_two_controllers_one_frozen_at_any_operation_and_woken_later_only_the_second_goes_on",),
        "a controller that was replaced goes on, and its decisions are not on record",
    ),
    Mutant(
        "fence-folded-away",
        SEGMENTS,
        "sorted(self._names.segments - self._fences)",
        "sorted(self._names.segments)",
        (f"{_JOURNAL}test_two_controllers_interleaved_anywhere_never_mix_their_lines",),
        "a controller that wakes up after hours finds its number free",
    ),
    Mutant(
        "lines-deleted-before-they-are-folded",
        SEGMENTS,
        "            if self._folded(first) and self._folded(first + self._size(first) - 1):",
        "            if self._folded(first) or self._folded(first + self._size(first) - 1):",
        (f"{_JOURNAL}test_a_death_at_any_operation_loses_no_line_that_was_written",),
        "decisions of the past are gone",
    ),
    Mutant(
        "missing-lines-not-missed",
        SEGMENTS,
        "        if beyond:",
        "        if False:",
        (f"{_JOURNAL}test_a_lost_object_is_an_error_that_says_which_lines_are_missing",),
        "a lost object cuts off everything behind it",
    ),
    Mutant(
        "folds-not-looked-at-by-who-begins",
        SEGMENTS,
        "        found = _line_before(storage, folder_of(path), seq, line)",
        "        found = None",
        (f"{_JOURNAL}test_five_controllers_in_any_order_each_write_in_one_piece_or_stop",),
        "two controllers write the same number, one of them behind a fold",
    ),
    Mutant(
        "lease-ignored",
        LEASE,
        "    if left_s > 0:",
        "    if False:",
        (f"{_RUNS}test_on_another_host_the_lease_counts_and_can_be_overridden",),
        "a run is started twice from two hosts",
    ),
    Mutant(
        "live-process-not-looked-for",
        LEASE,
        "        if holder.alive:",
        "        if False:",
        (f"{_RUNS}test_a_live_run_is_refused_on_the_same_host_and_freed_by_its_release",),
        "a run is started twice on one host",
    ),
)
