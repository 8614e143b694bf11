"""Defects of what a run is given, prompts, seeds, configs, secrets, models, and of the audit behind it all."""

from __future__ import annotations

from .record import Mutant

SCHEDULE = "core/verl_core/state/schedule.py"
ORDER = "core/verl_core/data/order.py"
DRAWS = "core/verl_core/draws.py"
FLOW = "core/verl_core/algorithms/flow.py"
FINGERPRINT = "core/verl_core/data/fingerprint.py"
INPUTS = "core/verl_core/inputs.py"
RESUME = "core/verl_core/config/resume.py"
LOAD = "core/verl_core/config/load.py"
SECRETS = "core/verl_core/config/secrets.py"
MODEL = "core/verl_core/config/model_folder.py"
AUDIT = "core/verl_core/state/audit.py"
RUNTIME = "core/verl_core/state/runtime.py"
HISTORY = "core/verl_core/state/history.py"
REWARD_MODELS = "core/verl_core/rewards/models.py"
REWARD_SWAP = "core/verl_core/rewards/swap.py"
CLASSIFIER = "plugins/engines/verl_core_engines/classifier.py"
_SCHEDULE = "tests/unit/test_schedule.py::"
_ORDER = "tests/unit/test_data_order.py::"
_DRAWS = "tests/unit/test_draws.py::"
_GRPO = "tests/unit/test_grpo.py::"
_REFUSALS = "tests/faults/test_run_refusals.py::"
_SECRETS = "tests/unit/test_config_secrets.py::"
_MODEL = "tests/unit/test_model_folder.py::"
_AUDIT = "tests/unit/test_audit.py::"
_CLASSIFIER = "tests/unit/test_classifier.py::"
_REWARDS = "tests/unit/test_rewards.py::"
_REWARD = "tests/e2e/test_reward_model.py::"

MUTANTS = (
    # --- the order of prompts -----------------------------------------------------------------
    Mutant(
        "ragged-batch-dropped",
        ORDER,
        "range(0, len(positions), prompts_per_batch)",
        "range(0, len(positions) - prompts_per_batch + 1, prompts_per_batch)",
        (f"{_ORDER}test_c09_every_prompt_comes_once_an_epoch_for_all_small_sizes_and_worker_counts",),
        "the prompts behind the last whole batch of an epoch are never seen (C09)",
    ),
    Mutant(
        "every-epoch-in-the-same-order",
        ORDER,
        'seed_of(seed, "order", epoch)',
        'seed_of(seed, "order", 0)',
        (f"{_ORDER}test_epochs_and_seeds_have_orders_of_their_own",),
        "an epoch is the one before, prompt by prompt",
    ),
    Mutant(
        "order-the-same-for-every-seed",
        ORDER,
        'seed_of(seed, "order", epoch)',
        'seed_of(0, "order", epoch)',
        (f"{_ORDER}test_epochs_and_seeds_have_orders_of_their_own",),
        "runs with other seeds repeat each other",
    ),
    Mutant(
        "ragged-step-dropped",
        SCHEDULE,
        "        return -(-self.batches_per_epoch // self._batches_per_step)",
        "        return max(1, self.batches_per_epoch // self._batches_per_step)",
        (f"{_SCHEDULE}test_c09_ragged_epochs_consume_every_prompt_once",),
        "the last step of an epoch is left out, with its prompts (C09)",
    ),
    Mutant(
        "step-reaches-into-the-next-epoch",
        SCHEDULE,
        "        last = min(first + self._batches_per_step, self.batches_per_epoch)",
        "        last = first + self._batches_per_step",
        (f"{_SCHEDULE}test_c09_ragged_epochs_consume_every_prompt_once",),
        "the end of an epoch asks for batches that there are none of (C02)",
    ),
    Mutant(
        "epoch-ends-a-step-early",
        SCHEDULE,
        "        epoch, place = divmod(step - 1, self.steps_per_epoch)",
        "        epoch, place = divmod(step, self.steps_per_epoch)",
        (f"{_SCHEDULE}test_step_and_batch_name_each_other_and_the_version_is_the_step_before",),
        "the first step of a run is skipped, and each epoch is cut one step off (C02)",
    ),
    Mutant(
        "batches-made-by-the-policy-after",
        SCHEDULE,
        "BatchSpec(key, self.step_of(key) - 1,",
        "BatchSpec(key, self.step_of(key),",
        (f"{_SCHEDULE}test_step_and_batch_name_each_other_and_the_version_is_the_step_before",),
        "samples are stamped with a policy that is not made yet",
    ),
    Mutant(
        "batch-counted-to-the-step-before",
        SCHEDULE,
        "key.batch // self._batches_per_step + 1",
        "(key.batch + 1) // self._batches_per_step + 1",
        (f"{_SCHEDULE}test_step_and_batch_name_each_other_and_the_version_is_the_step_before",),
        "the last batch of each step is made by another policy than the rest",
    ),
    Mutant(
        "prompts-consumed-overcounted",
        SCHEDULE,
        "return epochs * len(self.rows) +",
        "return epochs * self.steps_per_epoch * self.prompts_per_step +",
        (f"{_SCHEDULE}test_step_and_batch_name_each_other_and_the_version_is_the_step_before",),
        "the saved cursor is ahead of training after every ragged epoch (C06)",
    ),
    Mutant(
        "runtime-state-off-by-one",
        RUNTIME,
        "        schedule.prompts_through(step),",
        "        schedule.prompts_through(step + 1),",
        (f"{_AUDIT}test_c10_the_runtime_state_says_where_the_run_stands_at_every_step",),
        "the saved cursor is a step ahead of the saved weights (C10)",
    ),
    # --- seeds --------------------------------------------------------------------------------
    Mutant(
        "samples-of-a-prompt-alike",
        FLOW,
        "spec.policy_version, index)",
        "spec.policy_version, 0)",
        (f"{_GRPO}test_collect_scores_n_samples_of_each_prompt_under_seeds_of_their_own",),
        "all samples of a prompt are the same, and no group has an advantage",
    ),
    Mutant(
        "seeds-blind-to-the-policy",
        FLOW,
        "row, spec.policy_version, index)",
        "row, 0, index)",
        (f"{_GRPO}test_collect_scores_n_samples_of_each_prompt_under_seeds_of_their_own",),
        "draws of one step are those of another",
    ),
    Mutant(
        "seeds-blind-to-the-epoch",
        FLOW,
        "purpose, spec.key.epoch, row",
        "purpose, 0, row",
        (f"{_GRPO}test_collect_scores_n_samples_of_each_prompt_under_seeds_of_their_own",),
        "a prompt is drawn in each epoch as in the one before",
    ),
    Mutant(
        "evaluation-drawn-like-training",
        FLOW,
        "seed_of(self.run_seed, purpose,",
        'seed_of(self.run_seed, "train",',
        (f"{_GRPO}test_collect_scores_n_samples_of_each_prompt_under_seeds_of_their_own",),
        "an evaluation sees the very draws that were trained on",
    ),
    Mutant(
        "seed-parts-run-together",
        DRAWS,
        '    text = "\\x1f".join(',
        '    text = "".join(',
        (f"{_DRAWS}test_parts_of_a_seed_are_kept_apart",),
        "two samples of different prompts share their draws",
    ),
    Mutant(
        "draws-begin-anew-in-the-middle",
        DRAWS,
        "    positions = np.arange(start, start + count, dtype=np.uint64)",
        "    positions = np.arange(0, count, dtype=np.uint64)",
        (f"{_DRAWS}test_a_draw_depends_on_its_seed_and_position_alone",),
        "a response that is carried on elsewhere repeats its first draws",
    ),
    Mutant(
        "reward-that-is-no-number-trained-on",
        FLOW,
        "            if not math.isfinite(reward):",
        "            if False:",
        (f"{_GRPO}test_a_reward_that_is_not_finite_is_an_error_that_names_the_row",),
        "one NaN makes every weight NaN",
    ),
    # --- what may change between two starts ---------------------------------------------------
    Mutant(
        "changed-config-accepted",
        RESUME,
        "        if before.get(key) != after.get(key) and not any(",
        "        if key not in before and not any(",
        (f"{_REFUSALS}test_a_changed_key_that_decides_about_content_is_refused",),
        "the second half of a run follows another schedule than the first",
    ),
    Mutant(
        "whole-training-block-may-change",
        RESUME,
        '    "training.fault_tolerance",\n',
        '    "training",\n',
        (f"{_REFUSALS}test_a_changed_key_that_decides_about_content_is_refused",),
        "the number of prompts of a step changes in the middle of an epoch",
    ),
    Mutant(
        "refusal-is-a-warning",
        INPUTS,
        "    if changes and not inputs.start.force_resume:",
        "    if False:",
        (
            f"{_REFUSALS}test_a_changed_key_that_decides_about_content_is_refused",
            f"{_REFUSALS}test_other_data_is_refused",
        ),
        "a run goes on with other data than it began with",
    ),
    Mutant(
        "changed-data-not-noticed",
        FINGERPRINT,
        "        if name in before and before[name] != entry:",
        "        if False:",
        (
            "tests/unit/test_data_fingerprint.py::test_a_changed_byte_names_the_file",
            f"{_REFUSALS}test_other_data_is_refused",
        ),
        "rows are other prompts than the state log means",
    ),
    Mutant(
        "order-of-files-not-noticed",
        FINGERPRINT,
        "    if not lines and old.digest != new.digest:",
        "    if False:",
        ("tests/unit/test_data_fingerprint.py::test_a_file_more_a_file_less_and_another_order_are_told_apart",),
        "row numbers point at other prompts",
    ),
    # --- secrets ------------------------------------------------------------------------------
    Mutant(
        "secrets-written-into-the-run-folder",
        LOAD,
        "secrets.masked(dict(self.source), self.secrets, secrets.kept_reference)",
        "dict(self.source)",
        (f"{_SECRETS}test_a_secret_in_the_clear_is_masked_and_its_mask_is_refused",),
        "a password lies in every checkpoint",
    ),
    Mutant(
        "secrets-shown",
        LOAD,
        "secrets.masked(asdict(self.config), self.secrets)\n        return self.redact(",
        "asdict(self.config)\n        return str(",
        (f"{_SECRETS}test_a_secret_is_resolved_but_never_shown",),
        "a password is printed where a config is",
    ),
    Mutant(
        "secrets-in-urls-not-seen",
        SECRETS,
        " and URL.search(value) is not None",
        " and False",
        (f"{_SECRETS}test_urls_that_carry_a_secret",),
        "a webhook with its key is written into the run folder",
    ),
    Mutant(
        "secret-defaults-copied",
        SECRETS,
        '        return _DEFAULT.sub(r"\\1}", source)',
        "        return source",
        (f"{_SECRETS}test_a_default_of_a_secret_interpolation_is_not_copied",),
        "the password that stands in for a missing variable is written down",
    ),
    # --- models -------------------------------------------------------------------------------
    Mutant(
        "pickle-loaded",
        MODEL,
        "    if allow_pickle:\n        return []\n    remedy",
        "    if pickles:\n        return []\n    remedy",
        (f"{_MODEL}test_a_pickle_is_refused_unless_asked_for",),
        "weights from the net run code",
    ),
    Mutant(
        "remote-code-allowed",
        MODEL,
        " if asked else []",
        " if False else []",
        (f"{_MODEL}test_remote_code_is_refused",),
        "a model folder runs its own code",
    ),
    Mutant(
        "any-tokenizer-class-allowed",
        MODEL,
        "    if name is None or name in allowed:",
        "    if True:",
        (f"{_MODEL}test_another_tokenizer_class_is_refused",),
        "a tokenizer of unknown behaviour changes what a prompt is",
    ),
    Mutant(
        "missing-shard-accepted",
        MODEL,
        "    if missing or not names:",
        "    if not names:",
        (f"{_MODEL}test_every_shard_of_an_index_must_be_there",),
        "a model that lost a file is trained with random layers (C17)",
    ),
    # --- reward models ------------------------------------------------------------------------
    Mutant(
        "reward-model-changed-unnoticed",
        INPUTS,
        "    if known.digest and known.digest != reward.digest:",
        "    if False:",
        (f"{_REWARD}test_a_reward_model_that_changed_in_its_folder_is_refused",),
        "the second half of a run is scored by other weights than the first",
    ),
    Mutant(
        "reward-model-hashed-without-its-tokenizer",
        REWARD_MODELS,
        '_DECIDE = ("*.safetensors", "*.json",',
        '_DECIDE = ("*.safetensors", "config.json",',
        (f"{_CLASSIFIER}test_the_digest_is_that_of_all_that_decides_about_scores",),
        "a reward reads other tokens than before, and nobody learns of it",
    ),
    Mutant(
        "rewards-padded-in-batches",
        CLASSIFIER,
        "        tokens = torch.tensor([ids or [self._tokenizer.pad_id]], device=self._device)",
        "        self._most_seen = max(len(ids), getattr(self, '_most_seen', 0))\n"
        "        tokens = torch.tensor([ids + [5] * (self._most_seen - len(ids))], device=self._device)",
        (f"{_CLASSIFIER}test_a_score_has_the_same_bits_in_every_batch",),
        "a reward depends on which samples were scored with it, and so on the kill",
    ),
    Mutant(
        "any-number-of-outputs-scored",
        CLASSIFIER,
        "        if facts.num_labels != 1:",
        "        if False:",
        (f"{_CLASSIFIER}test_more_than_one_output_is_refused",),
        "the logit of some class is taken for a reward",
    ),
    Mutant(
        "reward-model-pickle-loaded",
        REWARD_MODELS,
        "    return bounded_check(path, None, tokenizer_classes)",
        "    return bounded_check(path, True, tokenizer_classes)",
        (f"{_CLASSIFIER}test_what_is_not_safe_or_not_whole_is_refused_before_a_start",),
        "a reward model from the net runs code",
    ),
    Mutant(
        "swap-of-the-reward-forgotten",
        HISTORY,
        '    "reward_updated": _reward_updated,\n',
        "",
        (f"{_REWARD}test_a_swap_is_on_record_and_shown_and_what_is_committed_keeps_its_rewards",),
        "a run goes on with the reward that was taken away",
    ),
    Mutant(
        "old-batches-scored-again-by-the-new-reward",
        HISTORY,
        "        return sum(swap.attempt >= attempt for swap in self.swaps)",
        "        return 0",
        (f"{_REWARD}test_a_batch_from_before_a_swap_that_is_made_again_is_scored_as_it_was",),
        "a batch that is made again after a swap is another batch",
    ),
    Mutant(
        "scale-of-the-old-reward-lost",
        REWARD_SWAP,
        "    return Scaled(reward, swaps[-1].scale, swaps[-1].shift) if swaps else reward",
        "    return reward",
        (
            f"{_REWARDS}test_a_reward_after_a_swap_is_the_new_one_on_its_scale_and_before_it_the_old_one",
            f"{_REWARD}test_the_rewards_of_a_swap_are_those_of_the_new_model_on_the_scale_of_the_old_one",
        ),
        "the rewards of a run jump at a swap",
    ),
    Mutant(
        "reward-turned-around-by-its-fit",
        REWARD_SWAP,
        "    if not (scale > 0.0 and math",
        "    if not (math",
        (f"{_REWARDS}test_outputs_that_do_not_go_with_the_old_ones_are_refused",),
        "the policy learns what the new reward model thinks worst of",
    ),
    # --- the audit ----------------------------------------------------------------------------
    Mutant(
        "audit-blind-to-repeated-prompts",
        AUDIT,
        "        repeated = [row for row, count in rows.items() if count > 1]",
        "        repeated = [row for row, count in rows.items() if count > 2]",
        (f"{_AUDIT}test_a_prompt_that_is_repeated_or_missing_within_an_epoch_is_found",),
        "a verification passes a run that trained twice on a prompt",
    ),
    Mutant(
        "audit-blind-to-skipped-prompts",
        AUDIT,
        "        if epoch < max(epochs) and set(rows) != whole[0]:",
        "        if False:",
        (f"{_AUDIT}test_a_prompt_that_is_repeated_or_missing_within_an_epoch_is_found",),
        "a verification passes a run that skipped prompts (C06)",
    ),
    Mutant(
        "audit-blind-to-stale-batches",
        AUDIT,
        "            elif ref.policy_version != step - 1:",
        "            elif False:",
        (f"{_AUDIT}test_a_skipped_step_a_repeated_batch_and_a_stale_one_are_found",),
        "a verification passes a run that trained on samples of a stale policy",
    ),
    Mutant(
        "audit-blind-to-order",
        AUDIT,
        "        if not follows:",
        "        if False:",
        (f"{_AUDIT}test_a_skipped_step_a_repeated_batch_and_a_stale_one_are_found",),
        "a verification passes a run that took a batch twice",
    ),
    Mutant(
        "audit-blind-to-missing-steps",
        AUDIT,
        "        if record is None:",
        "        if record is None and False:",
        (f"{_AUDIT}test_a_skipped_step_a_repeated_batch_and_a_stale_one_are_found",),
        "a verification passes a run that has a hole",
    ),
)
