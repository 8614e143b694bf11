"""Defects of checkpoints: marks left out, the last good one given up, damage loaded, strangers taken for ours."""

from __future__ import annotations

from .record import Mutant

SHARDED = "core/verl_core/checkpoint/sharded.py"
SHELF = "core/verl_core/checkpoint/shelf.py"
SUMMARY = "core/verl_core/checkpoint/summary.py"
FORMAT = "core/verl_core/checkpoint/format.py"
SCHEMA = "core/verl_core/checkpoint/schema.py"
COPIES = "core/verl_core/checkpoint/copies.py"
KEEPER = "core/verl_core/checkpoint/keeper.py"
RETENTION = "core/verl_core/checkpoint/retention.py"
SLICES = "core/verl_core/reshard/slices.py"
DIGEST = "core/verl_core/checkpoint/digest.py"
_SHARDED = "tests/unit/test_checkpoint_sharded.py::"
_FORMAT = "tests/unit/test_checkpoint_format.py::"
_COPIES = "tests/faults/test_copies.py::"
_KEEPER = "tests/faults/test_keeper_points.py::"
_SAVES = "tests/faults/test_save_points.py::"
_RETENTION = "tests/unit/test_retention.py::"

MUTANTS = (
    Mutant(
        "checkpoint-mark-not-written",
        SHELF,
        '            self._storage.write(f"{folder}/{SUCCESS}", b"")\n',
        "",
        (f"{_SHARDED}test_a_checkpoint_has_the_files_of_the_format_and_comes_back",),
        "no save ever counts: the next start begins at step 0 (C01)",
    ),
    Mutant(
        "checkpoint-marked-before-its-data",
        SHELF,
        "        self._storage.delete(folder)  # of an earlier try of this attempt\n        return folder",
        '        self._storage.write(f"{name}/{SUCCESS}", b"")\n        return name',
        (f"{_SAVES}test_the_first_save_of_a_run_killed_anywhere_is_there_or_not",),
        "a folder that was begun looks committed (C14)",
        also=(
            (
                '            self._storage.write(f"{folder}/{SUCCESS}", b"")\n'
                "            self._storage.publish(folder, name)",
                "            pass",
            ),
        ),
    ),
    Mutant(
        "checkpoint-written-in-place",
        SHELF,
        "        self._storage.delete(folder)  # of an earlier try of this attempt\n        return folder",
        "        return name",
        (f"{_SAVES}test_c03_c14_with_one_kept_a_good_checkpoint_stands_at_every_moment",),
        "what a kill left is in the way of the next save, and of whoever looks",
        also=(("            self._storage.publish(folder, name)\n", ""),),
    ),
    Mutant(
        "leftover-of-an-earlier-try-kept",
        SHELF,
        "        self._storage.delete(folder)  # of an earlier try of this attempt\n",
        "",
        (f"{_KEEPER}test_a_save_begins_with_an_empty_folder",),
        "files of a failed save are published with the next one",
    ),
    Mutant(
        "saved-without-reading-back",
        SHARDED,
        "            if self._config.read_back:",
        "            if False:",
        (f"{_SHARDED}test_what_does_not_read_back_is_not_committed",),
        "a save that the disk spoiled replaces a good one",
    ),
    Mutant(
        "damaged-save-kept-as-it-is",
        SHARDED,
        "            folder, summary = self._read_summary(name)\n"
        "            check_files(self._storage, folder, summary.files)\n        except",
        "            folder, summary = self._read_summary(name)\n        except",
        (f"{_SHARDED}test_c14_a_changed_cut_or_lost_file_is_named_and_the_step_is_saved_anew",),
        "a step that is saved again leaves the damaged checkpoint in place",
    ),
    Mutant(
        "save-of-another-policy-accepted",
        SHARDED,
        "        if summary.policy_digest != policy_digest:",
        "        if False:",
        (f"{_SHARDED}test_a_step_that_is_saved_with_another_policy_is_not_passed_off_as_this_one",),
        "a resume loads other weights than those that were trained",
    ),
    Mutant(
        "no-look-at-free-space",
        SHARDED,
        "        if free < needed:",
        "        if False:",
        (f"{_SHARDED}test_c11_without_room_nothing_is_written",),
        "a save fills the disk, and everything else on it stops (C11)",
    ),
    Mutant(
        "summary-of-the-journal-not-compared",
        SHARDED,
        "        if summary.ref.summary_hash != ref.summary_hash:",
        "        if False:",
        (
            f"{_SHARDED}test_a_whole_checkpoint_that_the_journal_does_not_know_is_refused",
            f"{_KEEPER}test_a_checkpoint_that_the_journal_knows_must_be_that_very_one",
        ),
        "a checkpoint that was exchanged is loaded",
    ),
    Mutant(
        "files-not-verified-on-load",
        SHARDED,
        "        check_files(self._storage, folder, summary.files)\n        return folder",
        "        return folder",
        (
            f"{_SHARDED}test_c14_a_changed_cut_or_lost_file_is_named_and_the_step_is_saved_anew",
            f"{_KEEPER}test_damaged_checkpoints_are_put_aside_and_the_good_one_before_them_is_loaded",
        ),
        "flipped bits are loaded as weights",
    ),
    Mutant(
        "incomplete-checkpoint-listed",
        SHARDED,
        "            missing = summary.files.keys() - found.sizes.keys()",
        "            missing = set()",
        (f"{_SHARDED}test_c01_c04_a_folder_without_mark_or_shard_is_not_committed_and_named",),
        "a folder that lost a rank's file looks fine (C04)",
    ),
    Mutant(
        "unmarked-checkpoint-listed",
        SHARDED,
        "        missing = {SUCCESS, SUMMARY} - found.sizes.keys()",
        "        missing = {SUMMARY} - found.sizes.keys()",
        (f"{_SHARDED}test_c01_c04_a_folder_without_mark_or_shard_is_not_committed_and_named",),
        "what a kill left half-written is loaded (C14)",
    ),
    Mutant(
        "schema-not-looked-at",
        SHARDED,
        "        return schema.upgraded(reader, self._where(folder, SCHEMA))",
        "        return reader",
        (f"{_SHARDED}test_c13_an_unknown_schema_is_refused_with_the_reason",),
        "state of another version is read by the wrong rules (C13)",
    ),
    Mutant(
        "schema-of-records-not-compared",
        SCHEMA,
        "_differences(theirs.classes, ours.classes)",
        "_differences(ours.classes, ours.classes)",
        ("tests/unit/test_checkpoint_schema.py::test_another_format_or_record_is_refused_by_name",),
        "a renamed field is silently ignored (C13)",
    ),
    Mutant(
        "hash-of-files-not-compared",
        SUMMARY,
        '        if f"blake3:{found.hexdigest()}" != entry.hash:',
        "        if False:",
        (f"{_SHARDED}test_c14_a_changed_cut_or_lost_file_is_named_and_the_step_is_saved_anew",),
        "flipped bits are loaded as weights",
    ),
    Mutant(
        "checkpoint-of-another-run-loaded",
        SUMMARY,
        '    if fields["run_id"] != run_id:',
        "    if False:",
        (f"{_SHARDED}test_a_checkpoint_of_another_run_is_never_taken_for_ours",),
        "a run goes on from another run's weights",
    ),
    Mutant(
        "checkpoint-of-another-step-loaded",
        SUMMARY,
        '    if fields["step"] != step_of(name):',
        "    if False:",
        (f"{_SHARDED}test_files_of_another_step_are_found_whether_one_or_all_are_swapped_in",),
        "weights of one step go on with the data of another (C10)",
    ),
    Mutant(
        "replicas-not-compared",
        FORMAT,
        "            if content_hash(chunk.data) != content_hash(replica.data):",
        "            if False:",
        (f"{_FORMAT}test_c12_replicas_that_differ_between_ranks_are_named_and_not_saved",),
        "ranks that drifted apart are saved as if they agreed (C12)",
    ),
    Mutant(
        "holes-in-tensors-saved",
        FORMAT,
        "        if sum(prod(piece.shape) for piece in pieces) != prod(pieces[0].global_shape):",
        "        if False:",
        (f"{_FORMAT}test_pieces_that_do_not_make_up_a_tensor_are_refused",),
        "overlapping pieces are saved, and which one is loaded is left to chance (C17)",
    ),
    Mutant(
        "deleted-in-place",
        SHELF,
        "            self._storage.move(ref.name, gone)\n",
        "            for stat in reversed(list(self._storage.list(ref.name))):\n"
        "                self._storage.delete(stat.path)\n",
        (f"{_KEEPER}test_c03_with_one_kept_a_kill_at_any_operation_leaves_a_good_checkpoint",),
        "a kill within a deletion leaves a folder that is marked and has lost its data (C04)",
    ),
    Mutant(
        "given-up-before-the-new-one-is-whole",
        KEEPER,
        "                self._committed(self._apart(self._checkpointer.save, state))\n",
        "                for old in self._checkpointer.list():\n"
        "                    self._checkpointer.delete(old)\n"
        "                self._committed(self._apart(self._checkpointer.save, state))\n",
        (f"{_KEEPER}test_c03_with_one_kept_a_kill_at_any_operation_leaves_a_good_checkpoint",),
        "with one kept, a kill within a save leaves none (C03)",
    ),
    Mutant(
        "oldest-loaded-first",
        KEEPER,
        "        for ref in refs:\n            wanted",
        "        for ref in reversed(refs):\n            wanted",
        (f"{_KEEPER}test_the_newest_checkpoint_is_loaded",),
        "each restart throws away what could have been kept",
    ),
    Mutant(
        "journal-not-asked-which-one",
        KEEPER,
        "            wanted = known.get(ref.step, ref)",
        "            wanted = ref",
        (f"{_KEEPER}test_a_checkpoint_that_the_journal_knows_must_be_that_very_one",),
        "a checkpoint that was exchanged is loaded",
    ),
    Mutant(
        "condemned-before-it-is-on-record",
        KEEPER,
        "        self._writes.barrier()  # journalled before it is moved\n",
        "",
        ("tests/faults/test_run_order.py::test_a_damaged_checkpoint_is_condemned_on_record_before_it_is_moved",),
        "a checkpoint is gone, and no line says why",
    ),
    Mutant(
        "superseded-checkpoints-kept",
        KEEPER,
        "            if ref.step >= step:",
        "            if ref.step > step:",
        (
            "tests/faults/test_run_faults.py::"
            "test_a_step_run_again_on_another_platform_supersedes_what_was_saved_after_it",
        ),
        "a later resume goes back to a policy that the run has left",
    ),
    Mutant(
        "oldest-kept",
        RETENTION,
        "reverse=True)",
        "reverse=False)",
        (f"{_RETENTION}test_what_is_beyond_the_newest_goes_oldest_first",),
        "retention gives up the newest checkpoint",
    ),
    Mutant(
        "protected-steps-given-up",
        RETENTION,
        " if ref.step not in protected]",
        "]",
        (f"{_RETENTION}test_the_newest_and_the_protected_stay_and_all_else_goes",),
        "the only resume point is deleted",
    ),
    Mutant(
        "one-too-few-kept",
        RETENTION,
        "newest_first[keep:]",
        "newest_first[keep - 1 :]",
        (f"{_RETENTION}test_what_is_beyond_the_newest_goes_oldest_first",),
        "with one kept, none is (C03)",
    ),
    Mutant(
        "policy-digest-blind-to-places",
        DIGEST,
        "(weighted + part.weighted) % _MODULUS",
        "0",
        ("tests/unit/test_fsdp_state.py::test_the_digest_sees_names_values_and_places",),
        "weights that were swapped within a tensor pass for the right ones (C17)",
    ),
    Mutant(
        "copy-not-sent",
        COPIES,
        "        self._main.adopt(ref, files)",
        "        pass",
        (f"{_COPIES}test_e5_each_save_is_here_first_and_the_same_in_the_runs_storage",),
        "a checkpoint counts as committed that lies on one host alone",
    ),
    Mutant(
        "copy-of-a-dead-fork",
        COPIES,
        "            if ref.step > above and self._wanted(ref):",
        "            if ref.step > above:",
        (f"{_COPIES}test_e5_a_copy_of_steps_that_were_made_again_elsewhere_is_not_carried_over",),
        "a host that comes back brings steps of which the run made others meanwhile",
    ),
    Mutant(
        "copies-wait-for-ever",
        COPIES,
        "        if now - self._down_since > self._limit_s:",
        "        if False:",
        (f"{_COPIES}test_e5_down_for_too_long_is_an_error",),
        "a run goes on for days with its checkpoints on one disk",
    ),
    Mutant(
        "adopted-unread",
        SHARDED,
        '                self._read_back(folder, summary)\n                crash.point("copy.verified")',
        '                crash.point("copy.verified")',
        (f"{_COPIES}test_e5_a_copy_that_was_cut_short_on_its_way_is_not_committed",),
        "a copy that was cut short on its way is committed",
    ),
    Mutant(
        "saved-already-but-not-durable",
        SHARDED,
        "        self._shelf.settle()\n",
        "",
        (
            "tests/faults/test_power_cut.py::test_a_checkpoint_that_is_saved_already_is_durable_although_who_saved_it_died",
        ),
        "a checkpoint that was reported as saved is gone after a power cut",
    ),
    Mutant(
        "memory-of-a-copy-used-too-early",
        "plugins/engines/verl_core_engines/tensors.py",
        "free = [memory for memory, view in self._memory if view() is None]",
        "free = [memory for memory, view in self._memory]",
        ("tests/unit/test_fsdp_state.py::test_memory_of_a_copy_is_used_again_once_nobody_holds_any_piece_of_it",),
        "a save that is still being written holds tensors of a later step",
    ),
    Mutant(
        "part-of-a-tensor-not-hashed",
        FORMAT,
        "                own.update(block)\n",
        "                own = blake3(block)\n",
        (f"{_FORMAT}test_files_and_chunks_carry_their_hashes",),
        "the hash of a large tensor is that of its end",
    ),
    Mutant(
        "copy-here-alone-journalled",
        "core/verl_core/actions.py",
        "if found and not journalled and not parts.keeper.here_alone(found[0]):",
        "if found and not journalled:",
        (f"{_COPIES}test_e5_a_run_begins_only_where_its_storage_is_there_and_goes_on_without_it",),
        "the state log has a checkpoint that the run's storage never had (E5)",
    ),
    Mutant(
        "begun-without-its-storage",
        "core/verl_core/places.py",
        "if self.missing is not None and run.attempt == 1:",
        "if False:",
        (f"{_COPIES}test_e5_a_run_begins_only_where_its_storage_is_there_and_goes_on_without_it",),
        "a wrong address is noticed ten minutes into the run (E5)",
    ),
    Mutant(
        "brought-before-the-claim",
        COPIES,
        "        self._claim()\n",
        "",
        (f"{_COPIES}test_e5_the_claim_on_a_storage_that_was_down_comes_before_anything_is_brought_there",),
        "checkpoints are mixed with those of another run (E5)",
    ),
    Mutant(
        "started-anew-beside-a-storage-that-is-down",
        KEEPER,
        "if error is not None and known:",
        "if False:",
        (f"{_COPIES}test_e5_a_start_without_a_copy_here_needs_the_storage_that_has_one",),
        "an outage throws a run back to its first step (E5)",
    ),
    Mutant(
        "store-that-is-down-is-a-warning",
        "core/verl_core/health/stores.py",
        "if key == spare and isinstance(error, DOWN):",
        "if isinstance(error, DOWN):",
        ("tests/unit/test_stores.py::test_copies_on_this_host_stand_in_for_a_store_of_checkpoints_that_is_down",),
        "a run starts with a store that it needs and that does not answer (E5)",
    ),
)
