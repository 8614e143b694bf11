"""Defects of committing batches: marks before data, data of two workers mixed, damage and strangers taken in."""

from __future__ import annotations

from .record import Mutant

WRITER = "core/verl_core/rollout/writer.py"
RECORDS = "core/verl_core/rollout/records.py"
CODEC = "core/verl_core/rollout/codec.py"
COMMITTED = "core/verl_core/committed.py"
HANDOVER = "core/verl_core/rollout/handover.py"
_POINTS = "tests/faults/test_commit_points.py::"
_RACE = "tests/faults/test_race_points.py::"
_WRITER = "tests/unit/test_writer.py::"
_CODEC = "tests/unit/test_codec.py::"
_CUT = "tests/faults/test_power_cut.py::"
_HANDOVER = "tests/unit/test_handover.py::"

MUTANTS = (
    Mutant(
        "batch-marked-before-its-data",
        WRITER,
        '            self._write(folder, {**staged.files, SUCCESS: b""})\n'
        "            self._storage.publish(folder, str(key))",
        '            self._write(str(key), {SUCCESS: b"", **staged.files})',
        (f"{_POINTS}test_b2_a_commit_killed_at_any_operation_leaves_a_whole_batch_or_none",),
        "after a kill a reader finds SUCCESS beside half of the samples",
    ),
    Mutant(
        "batch-written-in-place",
        WRITER,
        '            self._write(folder, {**staged.files, SUCCESS: b""})\n'
        "            self._storage.publish(folder, str(key))",
        '            self._write(str(key), {**staged.files, SUCCESS: b""})',
        (
            f"{_POINTS}test_b2_a_commit_killed_at_any_operation_leaves_a_whole_batch_or_none",
            f"{_RACE}test_b3_a_worker_held_at_any_operation_while_another_commits_learns_who_won",
        ),
        "two workers write into one folder, and the data of one lies beside the record of the other",
    ),
    Mutant(
        "adopted-batch-not-settled",
        WRITER,
        '            self._storage.settle(f"epoch_{key.epoch}")',
        "            pass",
        (f"{_CUT}test_a_batch_that_is_adopted_is_durable_although_its_worker_died",),
        "a batch of a dead worker is journalled, and lost in a power cut",
    ),
    Mutant(
        "found-batches-not-settled",
        WRITER,
        '            self._storage.settle(f"epoch_{epoch}")',
        "            pass",
        (f"{_CUT}test_batches_that_a_start_finds_are_durable_although_their_worker_died",),
        "a start counts on a batch of a dead worker, and a power cut takes it",
    ),
    Mutant(
        "staging-shared-by-two-workers",
        WRITER,
        "{secrets.token_hex(4)}",
        "00000000",
        (f"{_RACE}test_b3_two_workers_held_at_every_pair_of_operations_agree_on_one_batch",),
        "a slow worker and its replacement write over each other's files before the commit",
    ),
    Mutant(
        "batch-not-read-back",
        WRITER,
        '            if data and self._storage.get(f"{folder}/{name}") != data:',
        "            if False:",
        (f"{_POINTS}test_a_batch_that_reads_back_differently_is_not_committed",),
        "what a disk spoiled on the way is committed, and found when it is too late",
    ),
    Mutant(
        "failed-commit-reported-as-done",
        WRITER,
        '                return self._records.adopt(f"{key}/", staged)\n            raise\n',
        '                return self._records.adopt(f"{key}/", staged)\n',
        (f"{_POINTS}test_a_commit_that_fails_at_any_change_leaves_no_trace_and_succeeds_when_tried_again",),
        "the state log names a batch that was never written",
    ),
    Mutant(
        "failed-commit-leaves-its-copy",
        WRITER,
        "            with suppress(StorageError):\n                self._storage.delete(folder)\n",
        "",
        (f"{_POINTS}test_a_commit_that_fails_at_any_change_leaves_no_trace_and_succeeds_when_tried_again",),
        "each failure on a full disk makes it fuller",
    ),
    Mutant(
        "scan-trusts-any-folder",
        RECORDS,
        '        if self.storage.stat(f"{folder}{SUCCESS}") is None:',
        "        if False:",
        (f"{_WRITER}test_a_batch_without_one_of_its_files_is_damaged",),
        "a batch that was never committed is trained on",
    ),
    Mutant(
        "samples-not-held-against-their-hash",
        RECORDS,
        "        if content_hash(data) != samples_hash:",
        "        if False:",
        (f"{_POINTS}test_whole_samples_of_another_batch_are_not_taken_for_these",),
        "files that were swapped are trained on",
    ),
    Mutant(
        "batch-not-held-against-the-journal",
        RECORDS,
        "        if (meta.samples_hash, meta.policy_version) != (ref.samples_hash, ref.policy_version):",
        "        if False:",
        (f"{_WRITER}test_a_whole_batch_that_the_journal_does_not_know_is_not_loaded_in_its_place",),
        "a step that is run again trains on other samples than the first time",
    ),
    Mutant(
        "batch-of-another-run-taken",
        RECORDS,
        "        if meta.run_id != self.identity.run_id:",
        "        if False:",
        (f"{_WRITER}test_a_batch_of_another_run_or_branch_is_never_adopted",),
        "data of a run that used the folder before is trained on",
    ),
    Mutant(
        "batch-under-another-name-taken",
        RECORDS,
        "        if BatchKey(meta.epoch, meta.batch) != key:",
        "        if False:",
        (f"{_WRITER}test_scan_leaves_out_what_is_not_whole_and_says_so",),
        "a copied folder counts twice, and its prompts with it",
    ),
    Mutant(
        "batch-of-another-policy-adopted",
        RECORDS,
        "        if (found.branch, found.policy_version, found.prompt_rows) != (",
        "        if (found.branch, asked.policy_version, asked.prompt_rows) != (",
        (f"{_WRITER}test_a_batch_of_another_schedule_is_never_adopted",),
        "samples of a stale policy are taken for those of the step",
    ),
    Mutant(
        "batch-with-other-seeds-adopted",
        RECORDS,
        "        if tuple(map(_draw, samples)) != staged.draws:",
        "        if False:",
        (f"{_WRITER}test_a_batch_with_other_seeds_is_never_adopted",),
        "a batch drawn under another seed is taken for the one of the schedule",
    ),
    Mutant(
        "samples-of-other-prompts-staged",
        RECORDS,
        "        if tuple(dict.fromkeys(sample.row for sample in samples)) != tuple(dict.fromkeys(spec.rows)):",
        "        if False:",
        (f"{_WRITER}test_samples_of_other_prompts_are_refused",),
        "prompts are skipped without a trace",
    ),
    Mutant(
        "count-and-hash-of-samples-not-checked",
        CODEC,
        "    if (trailer.count, trailer.hash) != (len(samples), content_hash(body + newline)):",
        "    if trailer.count != len(samples):",
        (f"{_CODEC}test_any_byte_that_is_changed_lost_or_added_is_found",),
        "flipped bits reach the gradient",
    ),
    Mutant(
        "missing-samples-not-noticed",
        CODEC,
        "    if (trailer.count, trailer.hash) != (len(samples), content_hash(body + newline)):",
        "    if False:",
        (f"{_CODEC}test_any_byte_that_is_changed_lost_or_added_is_found",),
        "a batch that lost lines is trained on as if it were whole",
    ),
    Mutant(
        "batch-format-not-checked",
        CODEC,
        '    if fields.get("format") != FORMAT:',
        "    if False:",
        (f"{_CODEC}test_meta_of_an_unknown_format_is_refused",),
        "a batch of another version is read by the wrong rules",
    ),
    Mutant(
        "sealed-record-not-checked",
        COMMITTED,
        "    if seal(fields) != data:",
        "    if False:",
        (
            f"{_CODEC}test_meta_comes_back_and_no_byte_of_it_can_change_unseen",
            "tests/unit/test_checkpoint_sharded.py::test_every_single_byte_of_the_summary_counts",
        ),
        "a damaged record decides which files are good",
    ),
    Mutant(
        "sweep-takes-the-work-of-the-living",
        COMMITTED,
        "int(match[1]) != living_attempt",
        "int(match[1]) >= 0",
        (f"{_WRITER}test_sweep_removes_leftovers_of_dead_attempts_and_nothing_else",),
        "a restart deletes what its own workers are writing",
    ),
    Mutant(
        "sweep-takes-the-whole-staging-folder",
        COMMITTED,
        "    if len(dead) == len(names):",
        "    if dead:",
        (f"{_WRITER}test_sweep_removes_leftovers_of_dead_attempts_and_nothing_else",),
        "work in progress disappears under its writer",
    ),
    Mutant(
        "condemned-data-overwritten",
        COMMITTED,
        "        try:\n            storage.move(folder, target)",
        "        storage.delete(target)\n        try:\n            storage.move(folder, target)",
        (f"{_WRITER}test_a_condemned_batch_lies_aside_and_can_be_made_again",),
        "the evidence of an earlier damage is lost",
    ),
    Mutant(
        "claim-of-another-adopted",
        COMMITTED,
        "        return None if found == data else found\n    return None",
        "        return None\n    return None",
        ("tests/faults/test_open_points.py::test_of_two_that_claim_one_prefix_at_once_exactly_one_gets_it",),
        "two runs share a folder, and each sweeps what the other is writing",
    ),
    Mutant(
        "late-worker-replaces-the-winner",
        HANDOVER,
        "            if spec.key in self._refs:\n                return self._refs[spec.key]\n",
        "",
        (f"{_HANDOVER}test_a_late_worker_learns_that_another_won_and_nothing_is_mixed",),
        "training uses other samples than those that were committed",
    ),
    Mutant(
        "memory-trusted-for-another-batch",
        HANDOVER,
        "            if self._refs.get(ref.key) == ref and ref.key in self._held:",
        "            if ref.key in self._held:",
        (f"{_HANDOVER}test_what_is_in_memory_is_not_passed_off_as_another_batch",),
        "training uses what a worker handed in, not what the journal names",
    ),
    Mutant(
        "memory-only-although-durable",
        HANDOVER,
        "        if self._durable:",
        "        if not self._durable:",
        (f"{_HANDOVER}test_samples_are_there_at_once_and_on_disk_after_the_queue",),
        "nothing is committed at all, and a crash loses every batch",
    ),
)
