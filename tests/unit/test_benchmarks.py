"""The benchmark driver, on small groups of the test's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.machine import describe


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quick_group.py").write_text("def measure(): return {'quick_ratio': 1.5}")
    (tmp_path / "broken_group.py").write_text("def measure(): raise RuntimeError('no figures today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("groups")
def test_a_failing_group_is_told_after_the_others_were_merged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "out" / "bench.json"
    assert run(["broken_group", "quick_group"], results) == 1
    assert json.loads(results.read_text())["quick_ratio"] == 1.5
    captured = capfd.readouterr()
    assert "no figures today" in captured.err
    assert "quick_ratio" in captured.out


@pytest.mark.usefixtures("groups")
def test_figures_of_other_groups_stay(tmp_path: Path) -> None:
    results = tmp_path / "bench.json"
    results.write_text(json.dumps({"other_ratio": 0.9, "quick_ratio": 9.0}))
    assert run(["quick_group"], results) == 0
    merged = json.loads(results.read_text())
    assert (merged["other_ratio"], merged["quick_ratio"]) == (0.9, 1.5)
    assert merged["machine"]["cores"] >= 1


def test_the_machine_is_described_in_full(tmp_path: Path) -> None:
    facts = describe(tmp_path)
    assert facts["cpu"]
    assert facts["file_system"] != "unknown"
    assert float(facts["memory_gib"]) > 0
