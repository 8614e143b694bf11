"""A planted secret never shows: not in a config copy, not in what is shown, not in an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_core.config import read_config
from verl_core.config.environment import env_resolver, parse_dotenv, read_environment
from verl_core.config.load import read_saved
from verl_core.config.secrets import secret_name, secret_value
from verl_core.errors import ConfigError, InputError

PLANTED = "hunter2-planted-secret"
MINIMAL = "model: {actor: {path: /m}}\n"


def config_file(folder: Path, text: str) -> str:
    file = folder / "run.yaml"
    file.write_text(MINIMAL + text)
    return str(file)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STORE_SECRET", PLANTED)
    monkeypatch.setenv("PLAIN", PLANTED)
    return PLANTED


@pytest.mark.parametrize(
    "text",
    [
        "storage: {address: '${oc.env:STORE_SECRET}'}",  # the variable says so
        "storage: {secret_access_key: '${oc.env:PLAIN}'}",  # the key says so
        "storage: {login: {password: '${oc.env:PLAIN}'}}",
        "monitoring: {webhook: {url: '${oc.env:PLAIN}'}}",  # a block says so
        "monitoring: {bot: {urls: ['https://a/send?key=${oc.env:PLAIN}']}}",  # the value says so
        "storage: {url: 'https://user:${oc.env:PLAIN}@host/'}",
        "storage: {a: '${oc.env:STORE_SECRET}', b: '${storage.options.a}', c: '${.a}'}",  # by way of another key
        "storage: {login: {x: '${oc.env:STORE_SECRET}'}}\nmonitoring: {y: '${storage.options.login}'}",
        "storage: {address: '${oc.env:${storage.options.name}}', name: STORE_SECRET}",
    ],
)
def test_a_secret_is_resolved_but_never_shown(tmp_path: Path, planted: str, text: str) -> None:
    loaded = read_config(config_file(tmp_path, text))
    assert planted in repr(loaded.config)
    assert planted not in loaded.shown_text()
    assert "***" in loaded.shown_text()
    assert planted not in loaded.config_text()
    assert "${oc.env:" in loaded.config_text()
    assert planted not in loaded.redact(f"refused: {planted} is no key")


def test_a_config_copy_reads_the_secret_again_from_the_environment(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read_config(config_file(tmp_path, "storage: {password: '${oc.env:PLAIN}'}")).config_text()
    copy = tmp_path / "config.yaml"
    copy.write_text(text)
    monkeypatch.setenv("PLAIN", "rotated")
    assert read_config(str(copy)).config.storage.options == {"password": "rotated"}


def test_a_secret_in_the_clear_is_masked_and_its_mask_is_refused(tmp_path: Path) -> None:
    loaded = read_config(config_file(tmp_path, f"storage: {{api_key: {PLANTED}, url: 'https://u:{PLANTED}@h'}}"))
    assert PLANTED not in loaded.config_text()
    assert PLANTED not in loaded.shown_text()
    copy = tmp_path / "config.yaml"
    copy.write_text(loaded.config_text())
    with pytest.raises(InputError, match=r"a masked secret — write \$\{oc\.env:NAME\}"):
        read_config(str(copy))


def test_a_default_of_a_secret_interpolation_is_not_copied(tmp_path: Path) -> None:
    loaded = read_config(config_file(tmp_path, f"storage: {{api_key: '${{oc.env:UNSET_KEY,{PLANTED}}}'}}"))
    assert loaded.config.storage.options == {"api_key": PLANTED}
    assert "${oc.env:UNSET_KEY}" in loaded.config_text()
    assert PLANTED not in loaded.config_text() + loaded.shown_text()


def test_errors_do_not_show_a_secret(tmp_path: Path, planted: str) -> None:
    for text in (
        "total_steps: ${oc.env:STORE_SECRET}",
        f"api_key: {planted}",
        "total_steps: ${oc.env:UNSET_NAME}\nstorage: {x: '${oc.env:PLAIN}'}",
        f"training: {{optim: {{lr: 'https://u:{planted}@h'}}}}",
    ):
        with pytest.raises(InputError) as caught:
            read_config(config_file(tmp_path, text))
        assert planted not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_changed_secret_does_not_count_as_a_changed_config(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = config_file(tmp_path, "algorithm: {password: '${oc.env:PLAIN}', bucket: a}")
    saved = read_config(file).config_text()
    monkeypatch.setenv("PLAIN", "rotated-secret")
    assert read_config(file).changed_since(saved) == []
    changes = read_config(file, ["algorithm.bucket=b", "algorithm.token=new-secret", "seed=3"]).changed_since(saved)
    assert [change.partition(":")[0] for change in changes] == [
        "algorithm.options.bucket",
        "algorithm.options.token",
        "seed",
    ]
    assert "new-secret" not in " ".join(changes)


def test_a_saved_config_is_read_without_its_secrets(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"storage: {{password: '${{oc.env:STORE_SECRET}}', token: {PLANTED}, bucket: b}}\nseed: ${{oc.env:SEED,3}}"
    saved = read_config(config_file(tmp_path, text)).config_text()
    monkeypatch.delenv("STORE_SECRET")
    config = read_saved(saved).config
    assert config.storage.options == {"password": "***", "token": "***", "bucket": "b"}
    assert config.seed == 3
    with pytest.raises(ConfigError, match="SEED is not set"):
        read_saved("model: {actor: {path: /m}}\nseed: ${oc.env:SEED}\n")


def test_a_secret_in_the_clear_can_be_held_against_its_mask(tmp_path: Path) -> None:
    file = config_file(tmp_path, f"storage: {{password: {PLANTED}}}")
    assert read_config(file).changed_since(read_config(file).config_text()) == []


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "password", "wecom_webhook", "api_key", "apiKey", "credentials", "passwd"],
)
def test_names_that_sound_secret(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name", ["tokenizer_classes", "max_token_len", "tokens", "max_tokens", "prompt_key", "path", "n", "seed", "key"]
)
def test_names_that_do_not(name: str) -> None:
    assert not secret_name(name)


def test_urls_that_carry_a_secret() -> None:
    assert secret_value("https://user:pw@host/x")
    assert secret_value("https://host/send?a=1&key=abc")
    assert not secret_value("https://host:8080/path?page=3")
    assert not secret_value("s3://bucket/rollouts/")


# --- the environment -------------------------------------------------------------------------


def test_a_missing_variable_is_one_line_with_key_and_name(tmp_path: Path, planted: str) -> None:
    file = config_file(tmp_path, "data: {train_files: ['${oc.env:NO_SUCH_VARIABLE}/x']}")
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    message = str(caught.value)
    assert message.startswith(
        f"{file}:2: data.train_files.0: environment variable NO_SUCH_VARIABLE is not set — export"
    )


def test_a_default_stands_in_for_a_missing_variable(tmp_path: Path) -> None:
    loaded = read_config(config_file(tmp_path, "seed: ${oc.env:NO_SUCH_SEED,7}\ntotal_epochs: ${oc.env:NO_E,null}"))
    assert (loaded.config.seed, loaded.config.total_epochs) == (7, None)


def test_dotenv_files_are_read_beside_the_config_and_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    here.mkdir()
    beside.mkdir()
    (here / ".env").write_text("V_A=here\nV_B=here\nV_C=here\n")
    (beside / ".env").write_text("V_B=beside\nV_C=beside\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("V_C", "real")
    file = config_file(beside, "storage: {a: '${oc.env:V_A}', b: '${oc.env:V_B}', c: '${oc.env:V_C}'}")
    loaded = read_config(file)
    assert loaded.config.storage.options == {"a": "here", "b": "beside", "c": "real"}
    assert loaded.changed_since(loaded.config_text()) == []


def test_dotenv_lines() -> None:
    text = "# c\n\nA=1\nexport B = 'x # y'\nC=\"q\" # c\nD=a b # c\nE=\nF=a=b#c\n"
    assert parse_dotenv(text, ".env") == {"A": "1", "B": "x # y", "C": "q", "D": "a b", "E": "", "F": "a=b#c"}


def test_a_malformed_dotenv_names_its_line_and_shows_no_value(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"A=1\n{PLANTED}\n")
    with pytest.raises(ConfigError) as caught:
        read_environment([tmp_path], {})
    assert str(caught.value).startswith(f"{tmp_path / '.env'}:2: ")
    assert PLANTED not in str(caught.value)


def test_the_resolver_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from omegaconf import OmegaConf

    monkeypatch.setenv("V_REAL", "real")
    config = OmegaConf.create({"a": "${oc.env:V_REAL}"})
    with env_resolver({"V_REAL": "other"}) as asked:
        assert config.a == "other"
        assert asked.names == {"V_REAL"}
    assert config.a == "real"
