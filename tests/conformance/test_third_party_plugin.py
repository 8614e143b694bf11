"""The package in ``examples/`` is that of the page, which builds, installs, finds, runs and checks it (test_docs)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from verl_core.errors import PluginError
from verl_core.plugins import discover, find, load

from tests.support.docs import ROOT, blocks

PACKAGE = ROOT / "examples/third_party_plugin"


def test_the_page_shows_the_package_whole_and_as_it_is() -> None:
    shown = {
        str(path).removeprefix("acme/"): block.text
        for block in blocks(ROOT / "docs/write-a-plugin.md")
        if (path := block.option("file")) is not None and path.startswith("acme/")
    }
    files = [p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix in (".py", ".toml")]
    assert shown == {str(path.relative_to(PACKAGE)): path.read_text() for path in files}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The package, built by its own build system and installed into a folder."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, str(site), str(PACKAGE)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return site


def test_installed_it_is_found_by_its_entry_point_and_offers_both(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match="unknown plugin 'acme'"):
        find("acme", discover())
    monkeypatch.syspath_prepend(installed)
    info = find("acme", discover())
    assert (info.distribution, info.version, info.default) == ("verl-core-acme", "0.1.0", False)
    offered = {(p.kind, p.name) for p in load(["acme"], defaults=False).registry.providers() if p.plugin == "acme"}
    assert offered == {("storage", "sqlite"), ("alert_sink", "acme_file")}
