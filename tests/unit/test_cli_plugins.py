from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from verl_core.cli import main as cli
from verl_core.errors import ConfigError, DamagedCheckpoint, PreflightError, RunBusy

COMMAND = [sys.executable, "-m", "verl_core.cli.main"]


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return int(caught.value.code or 0)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A distribution whose plugin cannot be imported."""
    info = tmp_path / "verl_third-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: verl-third\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[verl_core]\nbroken = third_cli_broken\n")
    (tmp_path / "third_cli_broken.py").write_text("import no_such_engine\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "broken"


def test_plugins_are_listed_without_importing_them(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("plugins") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "distribution", "module", "default"]
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    assert cells["broken"] == ["verl-third", "1.2", "third_cli_broken"]
    assert cells["retry"][-2:] == ["verl_core_recovery.retry", "yes"]
    assert "third_cli_broken" not in sys.modules


def test_the_check_says_what_each_offers(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("plugins", "--check", "--plugins", "retry,log") == 0
    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines()[1:]}
    assert rows["retry"].endswith("recovery retry")
    assert rows["log"].endswith("alert_sink log, metric_sink log")
    assert set(rows) == {"retry", "log"}


def test_a_broken_plugin_is_shown_and_leaves_with_2(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("plugins", "--check", "--plugins", broken, "--plugins", "retry") == 2
    rows = capsys.readouterr().out.splitlines()[1:]
    assert "error: cannot be imported: " in rows[0]
    assert "No module named 'no_such_engine'" in rows[0]
    assert rows[1].endswith("recovery retry")


def test_json_has_all_fields(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("plugins", "--json", "--plugins", broken) == 0
    expected = {
        "name": "broken",
        "distribution": "verl-third",
        "version": "1.2",
        "module": "third_cli_broken",
        "default": False,
    }
    assert json.loads(capsys.readouterr().out) == [expected]
    assert leave("plugins", "--json", "--check", "--plugins", broken) == 2
    found = json.loads(capsys.readouterr().out)[0]
    assert found["offers"] == []
    assert "no_such_engine" in found["error"]


def test_an_unknown_name_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("plugins", "--plugins", "rtery") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: unknown plugin 'rtery', did you mean 'retry'?")
    assert captured.err.count("\n") == 1


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("--version") == 0
    assert capsys.readouterr().out.strip().count(".") == 2


def test_an_unknown_option_leaves_with_2() -> None:
    assert leave("plugins", "--nope") == 2


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("bad [red]value[/red]", where="a.b"), 2, "error: a.b: bad [red]value[/red]\n"),
        (RunBusy("held by\npid 7", remedy="wait"), 3, "error: held by pid 7 — wait\n"),
        (DamagedCheckpoint("actor.safetensors differs"), 4, "error: actor.safetensors differs\n"),
    ],
)
def test_an_error_is_one_line_as_it_is_and_its_own_exit_code(
    error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert leave() == code
    assert capsys.readouterr().err == text


def test_findings_of_a_preflight_stand_below_each_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: object) -> None:
        findings = [ConfigError("is relative", where="data.train_files", remedy="make it absolute")]
        raise PreflightError([*findings, ConfigError("no model", where="model")])

    monkeypatch.setattr(cli, "app", fail)
    assert leave() == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: 2 findings before the start; nothing was written",
        "  data.train_files  is relative — make it absolute",
        "  model             no model",
    ]


def test_help_is_quick_and_names_the_commands() -> None:
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60, check=True)
        seconds.append(time.perf_counter() - begin)
    for command in ("run", "train", "quickstart", "status", "verify", "check", "plugins", "confirm"):
        assert f" {command} " in done.stdout
    assert min(seconds) < 2.0  # about 0.4 s on a quiet machine


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import sys, verl_core.cli.main\n"
        "print({'torch', 'transformers', 'ray', 'datasets', 'pyarrow'} & set(sys.modules) or 'light')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "light"


@pytest.mark.parametrize(("raised", "code"), [("KeyboardInterrupt", 130), ("ZeroDivisionError", 1)])
def test_ctrl_c_and_our_own_faults_have_their_exit_codes(raised: str, code: int) -> None:
    source = (
        "from verl_core.cli import main as cli\n"
        f"@cli.app.command('fail')\ndef fail() -> None:\n    raise {raised}\n"
        "cli.main(['fail'])\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert ("Traceback" in done.stderr) == (code == 1)
