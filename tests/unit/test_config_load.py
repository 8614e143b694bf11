from __future__ import annotations

import re
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_core.config import Config, known_keys, load_config, packaged_configs, read_config
from verl_core.errors import ConfigError, InputError, PreflightError

MINIMAL = ("model.actor.path=/m",)


def write(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return str(file)


def wrong(file: str | None, *overrides: str, base: dict[str, object] | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        read_config(file, overrides, base=base)
    return caught.value


# --- what ships ------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(packaged_configs().glob("*.yaml")), ids=lambda f: f.name)
def test_every_packaged_config_loads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLLM2_PATH", "/models/smollm2")
    monkeypatch.setenv("GSM8K_TRAIN", "/data/gsm8k.jsonl")
    config = load_config(str(file), [*MINIMAL, "data.train_files=[/d.jsonl]"] if "quickstart" in file.name else [])
    assert config.model.actor.path in ("/m", "/models/smollm2")
    assert len(config.data.train_files) == 1


def test_the_gsm8k_recipe_is_composed_from_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLLM2_PATH", "/models/smollm2")
    monkeypatch.setenv("GSM8K_TRAIN", "/data/gsm8k.jsonl")
    config = load_config(str(packaged_configs() / "gsm8k-smollm2.yaml"))
    assert (config.model.actor.path, config.data.train_files) == ("/models/smollm2", ["/data/gsm8k.jsonl"])
    assert (config.distributed.cluster, config.training.optim.lr) == ("inline", 1e-6)
    assert config.data.prompt_suffix == " End with #### and the number."


def test_the_quickstart_names_what_it_still_needs() -> None:
    error = wrong(str(packaged_configs() / "quickstart.yaml"))
    assert isinstance(error, PreflightError)
    assert {f.where.rpartition(" ")[2] for f in error.findings} == {"model.actor.path", "data.train_files"}
    assert all("--set" in f.remedy for f in error.findings)


def test_fragments_do_not_stand_alone_but_exist_for_the_recipes() -> None:
    names = {str(f.relative_to(packaged_configs())) for f in packaged_configs().glob("*/*.yaml")}
    assert {"model/smollm2-135m.yaml", "cluster/inline.yaml", "backup/none.yaml"} <= names


def test_native_dialect_loads_as_written(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "native.yaml",
        """
        training:
          fault_tolerance:
            enabled: true
            rollout_retry_times: 3
            rollout_timeout_sec: 120
            checkpoint_interval_steps: 50
            state_log_path: "s3://bucket/logs/state_log.jsonl"
            severity_thresholds: {rollout_lost_fraction: 0.5, train_nodes_lost: 2, node_lost_sec: 120,
              rollout_storage_down_sec: 60, checkpoint_storage_down_sec: 600, oom_per_window: 3,
              retries_per_window: 12, window_sec: 3600}
        model:
          actor:
            path: /m
            hybrid_engine: {enable_checkpointing: true, snapshot_interval_steps: 25}
        rollout_storage_uri: "s3://bucket/rollouts/"
        max_concurrent_uploads: 8
        """,
    )
    config = load_config(file)
    tolerance = config.training.fault_tolerance
    assert tolerance.state_log_path == "s3://bucket/logs/state_log.jsonl"
    assert tolerance.severity_thresholds.rollout_lost_fraction == 0.5
    assert (config.storage.rollout_storage_uri, config.storage.max_concurrent_uploads) == ("s3://bucket/rollouts/", 8)
    assert config.model.actor.hybrid_engine.snapshot_interval_steps == 25


def test_native_defaults_are_those_of_the_dialect() -> None:
    config = load_config(None, MINIMAL)
    limits = asdict(config.training.fault_tolerance.severity_thresholds)
    assert (limits["rollout_lost_fraction"], limits["train_nodes_lost"], limits["node_lost_sec"]) == (0.33, 2, 120)
    assert (limits["rollout_storage_down_sec"], limits["checkpoint_storage_down_sec"]) == (60, 600)
    assert config.training.fault_tolerance.checkpoint_interval_steps == 50
    assert (config.training.runtime_interval_steps, config.storage.max_concurrent_uploads) == (500, 4)


def test_a_key_given_at_the_top_and_in_its_block_must_agree(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "max_concurrent_uploads: 2\nstorage:\n  max_concurrent_uploads: 3\n")
    assert "given twice" in str(wrong(file, *MINIMAL))


# --- composition -----------------------------------------------------------------------------


def test_later_layers_win_and_the_file_is_last_by_default(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "seed: 1\ntotal_steps: 10\ntraining: {threads: 3, micro_batch_size: 4}\n")
    file = write(tmp_path, "top.yaml", "defaults: [base.yaml]\nseed: 2\ntraining: {threads: 5}\n")
    config = load_config(file, [*MINIMAL, "total_steps=20", "total_steps=30"], base={"seed": 0, "total_epochs": 7})
    assert (config.seed, config.total_steps, config.total_epochs) == (2, 30, 7)
    assert (config.training.threads, config.training.micro_batch_size) == (5, 4)


def test_self_sets_the_place_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "seed: 1\n")
    file = write(tmp_path, "top.yaml", "defaults: [_self_, base.yaml]\nseed: 2\n")
    assert load_config(file, MINIMAL).seed == 1


@pytest.mark.parametrize("entry", ["model: small", "/model: small", "override /model: small", "override model: small"])
def test_a_group_merges_at_its_block(tmp_path: Path, entry: str) -> None:
    write(tmp_path, "configs/model/small.yaml", "actor: {path: /small}\n")
    file = write(tmp_path, "configs/top.yaml", f"defaults:\n  - {entry}\n")
    assert load_config(file).model.actor.path == "/small"


def test_fragments_are_found_beside_the_file_one_folder_up_on_the_search_path_and_packaged(tmp_path: Path) -> None:
    for place, name in (("run/model", "beside"), ("configs/model", "above"), ("more/model", "searched")):
        write(tmp_path, f"{place}/{name}.yaml", f"actor: {{path: /{name}}}\n")
    for name in ("beside", "above", "searched"):
        file = write(tmp_path, "run/top.yaml", f"defaults: [model: {name}, cluster: inline]\n")
        config = read_config(file, search=[tmp_path / "more"]).config
        assert (config.model.actor.path, config.distributed.cluster) == (f"/{name}", "inline")


def test_override_drops_what_was_chosen_before_in_the_group(tmp_path: Path) -> None:
    write(tmp_path, "model/a.yaml", "actor: {path: /a, dtype: bfloat16}\n")
    write(tmp_path, "model/b.yaml", "actor: {path: /b}\n")
    write(tmp_path, "base.yaml", "defaults: [model: a]\nseed: 3\n")
    merged = load_config(write(tmp_path, "m.yaml", "defaults: [base.yaml, model: b]\n"))
    replaced = load_config(write(tmp_path, "r.yaml", "defaults: [base.yaml, override /model: b]\n"))
    assert (merged.model.actor.path, merged.model.actor.dtype) == ("/b", "bfloat16")
    assert (replaced.model.actor.path, replaced.model.actor.dtype, replaced.seed) == ("/b", "float32", 3)


def test_fragments_may_have_defaults_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "model/common.yaml", "actor: {path: /common, dtype: bfloat16}\n")
    write(tmp_path, "model/special.yaml", "defaults: [common.yaml]\nactor: {path: /special}\n")
    config = load_config(write(tmp_path, "top.yaml", "defaults: [model: special]\n"))
    assert (config.model.actor.path, config.model.actor.dtype) == ("/special", "bfloat16")


def test_a_choice_of_null_chooses_nothing(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, "a.yaml", "defaults: [backup: null]\n"), MINIMAL).backup.local_backup_dir is None


def test_files_that_include_each_other_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "defaults: [b.yaml]\n")
    write(tmp_path, "b.yaml", "defaults: [a.yaml]\n")
    assert "a.yaml → b.yaml → a.yaml" in str(wrong(str(tmp_path / "a.yaml")))


def test_a_missing_fragment_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "seed: 1\ndefaults:\n  - cluster: inlin\n")
    assert str(wrong(file)) == f"{file}:3: no fragment cluster/inlin.yaml — did you mean 'inline'?"


@pytest.mark.parametrize("entry", ["[a, b]", "{model: a, data: b}", "5", "{'': a}", "{model: {a: 1}}"])
def test_other_entries_of_the_list_are_errors(tmp_path: Path, entry: str) -> None:
    file = write(tmp_path, "a.yaml", f"defaults:\n  - {entry}\n")
    assert str(wrong(file)).startswith(f"{file}:2: not an entry of a defaults list")


# --- options of plugins ----------------------------------------------------------------------


def test_extra_keys_of_a_block_with_a_provider_are_its_options() -> None:
    config = load_config(None, [*MINIMAL, "algorithm.clip_ratio_low=0.2", "algorithm.options.clip_ratio_high=0.3"])
    assert config.algorithm.options == {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}


def test_options_of_a_lower_layer_give_way_whichever_way_they_are_written(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "algorithm: {name: grpo, options: {clip: 0.1}}\nrollout: {gpu_share: 0.5}\n")
    config = load_config(file, [*MINIMAL, "algorithm.clip=0.4", "rollout.options.gpu_share=0.9"])
    assert (config.algorithm.options, config.rollout.options) == ({"clip": 0.4}, {"gpu_share": 0.9})


def test_known_keys_of_a_block() -> None:
    assert known_keys("algorithm") == ("name",)
    assert {"prompts_per_batch", "n"} < set(known_keys("rollout"))
    assert "options" not in known_keys("rollout")
    assert known_keys("training.optim")[0] == "lr"
    assert known_keys("nothing.there") == ()


# --- what is wrong is said in one line -------------------------------------------------------


def test_an_unknown_key_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "training:\n  optim:\n    lr: 1e-3\n    warmup_step: 3\n")
    assert str(wrong(file)) == f"{file}:4: training.optim.warmup_step: unknown key — did you mean 'warmup_steps'?"


def test_a_known_key_in_the_wrong_place_is_sent_home(tmp_path: Path) -> None:
    assert str(wrong(write(tmp_path, "a.yaml", "betas: [0, 1]\n"))).endswith("it belongs to training.optim.betas")


def test_an_unknown_key_after_set_is_an_error() -> None:
    assert str(wrong(None, *MINIMAL, "data.train_file=x")).startswith("--set data.train_file: unknown key — did you")
    assert "did you mean 'training'?" in str(wrong(None, *MINIMAL, "trainin.threads=1"))


def test_all_unknown_keys_are_reported_together(tmp_path: Path) -> None:
    error = wrong(write(tmp_path, "a.yaml", "sed: 1\ndata: {shufle: true}\n"), *MINIMAL, "backup.x=1")
    assert isinstance(error, PreflightError)
    assert [str(f).count("\n") for f in error.findings] == [0, 0, 0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("total_steps: ten", "'ten' is not a whole number"),
        ("total_steps: 2.5", "2.5 is not a whole number"),
        ("total_steps: null", "None is not a whole number"),
        ("total_epochs: many", "'many' is not a whole number or null"),
        ("data: {shuffle: 7x}", "'7x' is not true or false"),
        ("training: {optim: {lr: fast}}", "'fast' is not a number"),
        ("training: {optim: {betas: [a, b]}}", "['a', 'b'] is not a list of numbers"),
        ("plugins: {a: 1}", "{'a': 1} is not a list of texts"),
        ("data: 5", "a block of keys is expected"),
    ],
)
def test_a_wrong_type_is_named_with_value_and_line(tmp_path: Path, line: str, expected: str) -> None:
    file = write(tmp_path, "a.yaml", f"# a comment\n{line}\n")
    assert str(wrong(file, *MINIMAL)).startswith(f"{file}:2: {line.partition(':')[0]}")
    assert expected in str(wrong(file, *MINIMAL))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("[{steps: 0, interval: often}]", "a.yaml:2: training.fault_tolerance.adaptive_checkpoint.intervals"),
        ("[{step: 0, interval: 5}]", "is not a list of {steps: a whole number, interval: a whole number}"),
        ("500", "is not a list of {steps: a whole number, interval: a whole number}"),
        (
            "[{steps: 0}]",
            "adaptive_checkpoint.intervals.0.interval: a value is missing — write it into the list",
        ),
    ],
)
def test_a_list_of_records_is_checked_like_a_block(tmp_path: Path, value: str, said: str) -> None:
    text = f"# phases\ntraining: {{fault_tolerance: {{adaptive_checkpoint: {{intervals: {value}}}}}}}\n"
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(write(tmp_path, "a.yaml", text), MINIMAL)


def test_a_missing_value_is_named_with_a_remedy() -> None:
    error = wrong(None)
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "model.actor.path: a value is missing — give the folder of a model, e.g. --set model.actor.path=DIR"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "not valid YAML"),
        ("seed: 1\nseed: 2\n", "a.yaml:2: not valid YAML: found duplicate key seed"),
        ("- a\n", "not a config"),
        ("hello", "not a config"),
        ("a: 1\nseed: ${oc.env:X\n", "a.yaml:2: seed: malformed interpolation"),
        ("seed: '\x00'\n", "not valid YAML"),
        ("defaults: base\n", "defaults is not a list"),
        ("1: 2\n", "unknown key"),
    ],
)
def test_a_malformed_file_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    message = str(wrong(str(file), *MINIMAL))
    assert said in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "none.yaml", tmp_path, tmp_path / "binary.yaml"):
        error = wrong(str(file))
        assert error.where == str(file)
        assert error.remedy


@pytest.mark.parametrize("text", ["seed", "=1", "a..b=1", "seed=[1", "seed=${x"])
def test_a_malformed_override_is_one_line(text: str) -> None:
    error = wrong(None, *MINIMAL, text)
    assert error.where.startswith("--set")
    assert "\n" not in str(error)


@pytest.mark.parametrize("value", ["${nope}", "${total_steps2}", "${seed}", "${zzz:1}", "${oc.env:}"])
def test_an_interpolation_that_leads_nowhere_is_one_line(value: str) -> None:
    assert str(wrong(None, *MINIMAL, f"seed={value}")).startswith("--set seed: ")


# --- values ----------------------------------------------------------------------------------


def test_values_after_set_are_yaml(tmp_path: Path) -> None:
    config = load_config(
        None,
        [*MINIMAL, "training.optim={lr: 1e-3, betas: [0.8, 0.9]}", "data.shuffle=no", "data.prompt_suffix='a=b: c'"],
    )
    assert (config.training.optim.lr, config.training.optim.betas) == (1e-3, [0.8, 0.9])
    assert (config.data.shuffle, config.data.prompt_suffix) == (False, "a=b: c")


def test_a_single_text_stands_for_a_list_of_one() -> None:
    assert load_config(None, [*MINIMAL, "data.train_files=/a.jsonl"]).data.train_files == ["/a.jsonl"]


def test_an_empty_file_and_an_empty_block_are_defaults(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "training:\nrollout:\n"):
        config = load_config(write(tmp_path, "a.yaml", text), MINIMAL)
        assert config == load_config(None, MINIMAL)


def test_values_refer_to_other_values() -> None:
    config = load_config(None, [*MINIMAL, "training.prompts_per_step=${rollout.prompts_per_batch}"])
    assert config.training.prompts_per_step == config.rollout.prompts_per_batch


def test_a_config_is_its_own_base() -> None:
    config = load_config(None, [*MINIMAL, "algorithm.clip=0.1", "data.train_files=[/a, /b]"])
    assert load_config(None, base=config) == config


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1.0),
    suffix=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20),
    options=st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), st.integers() | st.booleans()),
)
def test_a_saved_config_loads_again_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: int, lr: float, suffix: str, options: dict[str, object]
) -> None:
    config = Config(total_steps=steps)
    config.model.actor.path = "/m"
    config.training.optim.lr = lr
    config.data.prompt_suffix = suffix.replace("${", "$").replace("\\$", "$")
    config.algorithm.options = {f"opt_{key}": value for key, value in options.items()}
    loaded = read_config(None, base=config)
    file = tmp_path_factory.mktemp("saved") / "config.yaml"
    file.write_text(loaded.config_text(), encoding="utf-8")
    assert load_config(str(file)) == loaded.config == config
