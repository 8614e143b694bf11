"""What must be true of the repository itself: its layout, its pins, its packages, what importing it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for folder in ("core", "plugins", "benchmarks") for p in (ROOT / folder).rglob("*.py"))
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TABLES = {"core/verl_core/types.py", "core/verl_core/protocols.py"}  # long lists of small records
PACKAGES = ("verl_core", "verl_core_storage", "verl_core_engines", "verl_core_recovery", "verl_core_monitoring")


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield f"{path.relative_to(ROOT)}:{node.name}", node.end_lineno - node.lineno + 1


# --- sizes ------------------------------------------------------------------------------------


def test_no_file_is_over_300_lines_and_the_loop_fits_its_screen() -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in SOURCES}
    assert {name: n for name, n in lines.items() if n > 300 and name not in TABLES} == {}
    assert lines["core/verl_core/loop.py"] <= 200


def test_functions_fit_a_screen() -> None:
    assert [(name, n) for path in SOURCES for name, n in _functions(path) if n > 60] == []


# --- imports ----------------------------------------------------------------------------------

LIGHT = """
import importlib, pkgutil, sys
import verl_core, verl_core.cli
for module in pkgutil.iter_modules(verl_core.cli.__path__, "verl_core.cli."):
    importlib.import_module(module.name)
heavy = {"torch", "transformers", "ray", "datasets", "pyarrow", "s3fs", "fsspec", "botocore", "pandas", "reasoning_gym"}
print(*sorted(heavy & set(sys.modules)))
"""


def test_importing_the_library_and_every_command_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


# --- pins -------------------------------------------------------------------------------------


def _pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    requirements = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): str(r.specifier) for r in requirements}


def _required() -> list[Requirement]:
    project = PYPROJECT["project"]
    groups: list[list[str]] = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group if not text.startswith("verl-core")]


def test_the_lock_has_a_version_for_every_requirement() -> None:
    lock = _pins("constraints.txt")
    assert all(re.fullmatch(r"==[\w.]+", version) for version in lock.values())
    for requirement in _required():
        version = lock[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version.removeprefix("==")), requirement
    assert {name: lock.get(name) for name in _pins("requirements-dev.txt")} == _pins("requirements-dev.txt")


def test_every_plugin_has_an_extra_of_its_name() -> None:
    plugins = set(PYPROJECT["project"]["entry-points"]["verl_core"]) - {"core"}
    assert plugins <= set(PYPROJECT["project"]["optional-dependencies"])


# --- packages ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_every_package_the_configs_and_the_license(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    roots = [ROOT / "core", *(ROOT / "plugins").iterdir()]
    modules = {p.relative_to(root).as_posix() for root in roots for p in root.rglob("*.py")}
    configs = {f"verl_core/configs/{p.relative_to(ROOT / 'configs')}" for p in (ROOT / "configs").rglob("*.yaml")}
    assert modules | configs | {"verl_core/py.typed"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_distribution_holds_only_sources(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"core", "plugins", "configs", "pyproject.toml", "README.md", "LICENSE"} <= tops
    assert tops & {"build", "dist", "runs", ".venv", ".git"} == set()
