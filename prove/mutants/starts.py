"""Defects in what is checked before a start, in the schema lock, and in what keeps secrets inside."""

from __future__ import annotations

from .record import Mutant

HASHES = "core/verl_core/data/hashes.py"
MASKING = "core/verl_core/masking.py"
DEVICES = "core/verl_core/config/devices.py"
_HASHES = "tests/unit/test_data_hashes.py::"
_MASKING = "tests/unit/test_masking.py::"
_DEVICES = "tests/unit/test_devices.py::"

MUTANTS = (
    Mutant(
        "racy-hash-trusted",
        HASHES,
        "        return self.looks_like(info) and self.hashed_ns - max(self.mtime_ns, self.ctime_ns) >= RACY_NS",
        "        return self.looks_like(info)",
        (f"{_HASHES}test_a_change_within_the_same_tick_of_the_clock_is_caught",),
        "data that changed right behind their hashing are taken for the old ones",
    ),
    Mutant(
        "change-time-not-looked-at",
        HASHES,
        "    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino",
        "    return info.st_size, info.st_mtime_ns, 0, info.st_ino",
        (f"{_HASHES}test_every_change_of_a_known_file_is_seen",),
        "a file with its time set back is taken for the old one",
    ),
    Mutant(
        "data-that-grew-taken-for-changed",
        "core/verl_core/data/fingerprint.py",
        "new.size > old.size and hashes.begins_with(path, old.size, old.sha256)",
        "False",
        ("tests/unit/test_data_fingerprint.py::test_files_that_only_grew_are_told_apart_from_those_that_changed",),
        "nobody learns that rows were only appended",
    ),
    Mutant(
        "forced-start-not-on-record",
        "core/verl_core/assemble.py",
        "        run = note_forced(run, changes)",
        "        pass",
        ("tests/e2e/test_safe_start.py::test_a_forced_start_is_on_record_before_anything_is_overwritten",),
        "nobody learns why the bits differ from some step on",
    ),
    Mutant(
        "newer-schema-read",
        "core/verl_core/checkpoint/schema.py",
        "    if not 1 <= theirs.number <= SCHEMA:",
        "    if False:",
        ("tests/unit/test_checkpoint_schema.py::test_a_newer_schema_is_refused_with_the_version_that_wrote_it",),
        "state of a newer version is read by old rules (C13)",
    ),
    Mutant(
        "migration-left-out",
        "core/verl_core/checkpoint/schema.py",
        "        reader = Migrated(reader, step, ",
        "        Migrated(reader, step, ",
        ("tests/unit/test_migrations.py::test_migrations_follow_each_other",),
        "a renamed state file is not found (C13)",
    ),
    Mutant(
        "errors-show-secrets",
        "core/verl_core/errors.py",
        "masked(what), masked(where), masked(remedy)",
        "what, where, remedy",
        (f"{_MASKING}test_no_error_holds_it_also_behind_a_process",),
        "a password is printed, and lies in the state log",
    ),
    Mutant(
        "logs-show-secrets",
        MASKING,
        "            record.msg, record.args = hidden, None",
        "            pass",
        (f"{_MASKING}test_no_log_record_holds_it",),
        "a password lies in the log of a library",
    ),
    Mutant(
        "gpus-by-number",
        DEVICES,
        "    ordered = sorted(gpus, key=lambda gpu: gpu.bus_id)",
        "    ordered = sorted(gpus, key=lambda gpu: gpu.index)",
        (f"{_DEVICES}test_e10_a_scheduler_that_renumbers_the_devices_moves_no_rank",),
        "a scheduler that renumbers the devices scrambles the mesh",
    ),
    Mutant(
        "gpus-of-the-run-forgotten",
        DEVICES,
        "    if len(kept) != train + rollout:",
        "    if True:",
        (f"{_DEVICES}test_e10_on_a_larger_node_the_run_keeps_its_gpus",),
        "a restart places the ranks anew",
    ),
    Mutant(
        "index-may-name-a-pickle",
        "core/verl_core/config/model_folder.py",
        '    if odd := [name for name in names if not name.endswith(".safetensors") or Path(name).name != name]:',
        "    if odd := [name for name in names if not name]:",
        (
            "tests/unit/test_model_folder.py::test_an_index_that_names_anything_but_safetensors_of_the_folder_is_refused",
        ),
        "a model folder has a pickle loaded",
    ),
    Mutant(
        "weights-cut-short-loaded",
        "core/verl_core/config/model_folder.py",
        "    if size == wanted:",
        "    if True:",
        ("tests/unit/test_model_folder.py::test_weights_that_were_cut_short_anywhere_are_refused",),
        "a broken download fails only when workers load it",
    ),
    Mutant(
        "store-not-read-back",
        "core/verl_core/health/stores.py",
        "        if storage.get(name) != data:",
        "        if False:",
        ("tests/unit/test_stores.py::test_a_store_that_only_seems_to_work_is_found_out",),
        "a store that gives back other bytes is found out at the first resume",
    ),
    Mutant(
        "zombie-holds-a-run",
        "core/verl_core/state/claim.py",
        " and process.status() != psutil.STATUS_ZOMBIE",
        "",
        ("tests/unit/test_claim.py::test_a_zombie_does_not_hold_a_run_where_there_are_no_locks",),
        "a run on S3 whose controller was killed in a container that does not reap cannot be started again",
    ),
)
