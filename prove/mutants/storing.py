"""Defects of the local storage: syncs left out, names taken twice, half-done calls that look done."""

from __future__ import annotations

from .record import Mutant

LOCAL = "plugins/storage/verl_core_storage/local.py"
POSIX = "plugins/storage/verl_core_storage/posix.py"
DIRECT = "plugins/storage/verl_core_storage/direct.py"
_DIRECT = "tests/unit/test_local_direct.py::"
_CUT = "tests/faults/test_power_cut.py::"
_LOCAL = "tests/unit/test_local_storage.py::"
_PUBLISH = "tests/unit/test_local_publish.py::"

MUTANTS = (
    Mutant(
        "file-not-synced",
        POSIX,
        "            os.fdatasync(handle)",
        "            pass",
        (
            f"{_CUT}test_what_was_put_is_there_with_its_folders_whole_or_not_at_all",
            f"{_CUT}test_what_was_written_is_durable_where_it_is_named",
        ),
        "a power cut empties files that were reported as written",
    ),
    Mutant(
        "put-without-folder-sync",
        LOCAL,
        '            posix.sync_folder(folder)\n            crash.point("put.done")',
        '            crash.point("put.done")',
        (f"{_CUT}test_a_put_onto_an_object_leaves_the_old_one_until_the_new_one_is_durable",),
        "run.json or a claim that was written is gone after a power cut",
    ),
    Mutant(
        "taken-name-not-synced",
        LOCAL,
        "posix.sync_folder(folder)  # whoever made it may have died before its own sync",
        "pass",
        (f"{_CUT}test_a_name_that_is_found_taken_is_durable_although_its_maker_died",),
        "a run adopts the claim of a dead process, and a power cut takes it away again",
    ),
    Mutant(
        "published-name-not-synced",
        LOCAL,
        '            crash.point("move.renamed")\n            posix.sync_folder(os.path.dirname(goal))',
        '            crash.point("move.renamed")',
        (
            f"{_CUT}test_a_published_folder_is_there_with_all_that_was_staged",
            f"{_CUT}test_what_was_moved_is_in_the_new_place_only",
        ),
        "the state log speaks of a batch that a power cut took away",
    ),
    Mutant(
        "staged-names-not-synced",
        LOCAL,
        "            posix.sync_folders(source)",
        "            pass",
        (f"{_CUT}test_a_published_folder_is_there_with_all_that_was_staged",),
        "a committed folder lacks files after a power cut",
    ),
    Mutant(
        "adopted-folder-not-synced",
        LOCAL,
        "posix.sync_folder(os.path.dirname(goal))  # whoever published it may have died before its own sync",
        "pass",
        (f"{_CUT}test_a_folder_that_is_found_published_is_durable_although_its_maker_died",),
        "a batch of a dead worker is adopted, journalled, and lost in a power cut",
    ),
    Mutant(
        "new-folder-not-synced",
        POSIX,
        "            os.mkdir(path)\n        sync_folder(parent)",
        "            os.mkdir(path)",
        (f"{_CUT}test_what_was_put_is_there_with_its_folders_whole_or_not_at_all",),
        "a power cut takes a whole folder with everything in it",
    ),
    Mutant(
        "lines-not-synced",
        LOCAL,
        "os.O_CREAT | os.O_APPEND, sync=sync)",
        "os.O_CREAT | os.O_APPEND, sync=False)",
        (f"{_CUT}test_appended_lines_are_there_each_time",),
        "decisions take effect that no restart knows of",
    ),
    Mutant(
        "new-log-not-named",
        LOCAL,
        "            if new and sync:",
        "            if False:",
        (
            f"{_CUT}test_appended_lines_are_there_each_time",
            f"{_CUT}test_a_log_that_a_dead_process_made_is_made_durable_by_the_next_line",
        ),
        "the whole state log is gone after a power cut in the first minutes",
    ),
    Mutant(
        "cut-not-synced",
        POSIX,
        "        os.ftruncate(handle, size)\n        os.fsync(handle)",
        "        os.ftruncate(handle, size)",
        (f"{_CUT}test_a_cut_log_stays_cut",),
        "a torn tail that was cut off comes back in the middle of the state log",
    ),
    Mutant(
        "renamed-onto-an-empty-folder",
        POSIX,
        "    if os.path.lexists(goal):  # a rename onto an empty folder would succeed",
        "    if os.path.isfile(goal):",
        (f"{_PUBLISH}test_publish_onto_a_taken_name_changes_nothing",),
        "a folder that somebody else made is taken over",
    ),
    Mutant(
        "linked-over-an-existing-name",
        POSIX,
        "        os.link(source, goal)",
        "        os.replace(source, goal)",
        (
            "tests/faults/test_open_points.py::test_of_two_that_claim_one_prefix_at_once_exactly_one_gets_it",
            f"{_PUBLISH}test_move_renames_files_and_folders_onto_free_names_only",
        ),
        "two runs claim one folder, and each believes that it is its own",
    ),
    Mutant(
        "put-in-place",
        LOCAL,
        "                    os.replace(temp, target)",
        "                    posix.write(target, posix.read(temp, 0, None), os.O_CREAT | os.O_TRUNC, sync=True)",
        (
            f"{_CUT}test_a_put_onto_an_object_leaves_the_old_one_until_the_new_one_is_durable",
            f"{_LOCAL}test_a_put_killed_anywhere_leaves_the_old_object_or_the_new_one",
        ),
        "a kill leaves half of an object where a whole one was",
    ),
    Mutant(
        "lost-answer-taken-for-failure",
        POSIX,
        "        if not _is_same(before, goal):",
        "        if True:",
        (f"{_PUBLISH}test_a_rename_whose_answer_was_lost_counts_as_done",),
        "a commit that was done is reported as failed, and its data deleted",
    ),
    Mutant(
        "failed-rename-taken-for-done",
        POSIX,
        "        if not _is_same(before, goal):",
        "        if False:",
        (f"{_PUBLISH}test_a_rename_that_failed_is_an_error_and_leaves_the_staged_folder",),
        "a batch is journalled that was never published",
    ),
    Mutant(
        "lock-outlives-its-process",
        POSIX,
        "os.register_at_fork(after_in_child=_forget_locks)",
        "os.register_at_fork(after_in_child=lambda: None)",
        (f"{_LOCAL}test_a_lock_is_held_once_and_dies_with_its_process",),
        "after a kill the run stays locked by a forgotten child",
    ),
    Mutant(
        "path-leaves-the-root",
        LOCAL,
        'any(part in ("", ".", "..") for part in path.split("/"))',
        "False",
        (f"{_LOCAL}test_paths_that_leave_the_root_are_refused",),
        "a crafted name writes outside the run",
    ),
    Mutant(
        "full-disk-unnamed",
        POSIX,
        '    errno.ENOSPC: (StorageFull, "make room on this file system"),\n',
        "",
        (
            f"{_LOCAL}test_system_errors_become_errors_of_the_tree",
            f"{_LOCAL}test_a_put_that_fails_leaves_no_trace",
        ),
        "a full disk ends the run at once instead of being waited for",
    ),
    Mutant(
        "room-ahead-kept",
        DIRECT,
        "        if self._room > self._size:\n            os.ftruncate",
        "        if False:\n            os.ftruncate",
        (f"{_DIRECT}test_what_was_written_is_there_and_no_more",),
        "a large file ends in zeros that nobody wrote",
    ),
    Mutant(
        "end-of-a-large-file-lost",
        DIRECT,
        "    if filled:\n        yield buffer[:filled]",
        "    if False:\n        yield buffer[:filled]",
        (f"{_DIRECT}test_what_was_written_is_there_and_no_more",),
        "the last bytes of a shard are not written",
    ),
    Mutant(
        "buffer-filled-while-it-is-written",
        DIRECT,
        "buffer, other, filled = other, buffer, 0",
        "filled = 0",
        (f"{_DIRECT}test_what_is_under_way_to_a_slow_disk_stays_as_it_is",),
        "a shard holds the bytes of a later tensor",
    ),
    Mutant(
        "error-of-the-last-write-lost",
        DIRECT,
        "    if under_way is not None:\n        under_way.result()\n    return",
        "    return",
        (f"{_DIRECT}test_whichever_write_fails_the_call_does",),
        "a shard that the disk had no room for counts as written",
    ),
)
