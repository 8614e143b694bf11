"""The environment is held against its pins, and the file of pins against what the package needs."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from verl_core.config.frozen import FILE, check_frozen, distributions

from tests.support import pins

ROOT = Path(__file__).parents[2]


def findings(folder: Path, text: str, **installed: str) -> list[tuple[str, str, bool]]:
    file = folder / FILE
    file.write_text(text)
    found = check_frozen(file, {name.replace("_", "-"): version for name, version in installed.items()})
    assert all(finding.remedy for finding in found)
    return [(finding.key.removeprefix(f"{file}"), finding.what, finding.warning) for finding in found]


def test_what_is_pinned_and_installed_is_fine(tmp_path: Path) -> None:
    text = "# pins\n--index-url https://host/simple\nTorch==2.13.0\ntyping_extensions==4.1  # why\n\nx[y]==1.0rc1\n"
    assert findings(tmp_path, text, torch="2.13.0+cu130", typing_extensions="4.1", x="1.0rc1") == []


def test_a_missing_and_another_version_are_errors_and_extra_ones_are_named_together(tmp_path: Path) -> None:
    text = "a==1\nb==2\nc==3\n"
    assert findings(tmp_path, text, a="1", c="3.1", z="9", y="8", pip="1", verl_core="0.1") == [
        (":2", "b 2 is not installed", False),
        (":3", "c is 3.1, pinned is 3", False),
        ("", "installed, but not pinned: y 8, z 9", True),
    ]


def test_what_comes_with_a_build_of_torch_is_not_held_against_anything(tmp_path: Path) -> None:
    assert findings(tmp_path, "torch==2.13.0\n", torch="2.13.0", nvidia_nccl_cu13="2.28", triton="3.5") == []
    assert findings(tmp_path, "", nvidia_ml_py="13.0")[0][1] == "installed, but not pinned: nvidia-ml-py 13.0"


@pytest.mark.parametrize("line", ["a", "a>=1", "a==1.*", "a==1,<2", "a @ https://host/a.whl", "-e .", "-r other.txt"])
def test_a_line_that_pins_nothing_is_an_error(tmp_path: Path, line: str) -> None:
    [(place, what, warning)] = findings(tmp_path, f"# c\n{line}\n")
    assert (place, warning) == (":2", False)
    assert what.startswith(("not pinned to one version: ", "not a pin: "))
    assert line in what


def test_markers_and_hashes_are_understood(tmp_path: Path) -> None:
    text = (
        'a==1 ; python_version < "3"\nb==2 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\nc==3 --hash=sha256:22\n'
    )
    assert findings(tmp_path, text, c="3") == [(":4", "b 2 is not installed", False)]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    [finding] = check_frozen(tmp_path / "none.txt")
    assert (finding.key, finding.warning) == (str(tmp_path / "none.txt"), False)


def test_the_first_distribution_on_the_path_counts() -> None:
    assert distributions()[canonicalize_name("packaging")] == metadata.version("packaging")


# --- requirements-prod.txt ---------------------------------------------------------------------


def test_the_environment_of_these_tests_is_the_pinned_one() -> None:
    assert [str(f) for f in check_frozen(ROOT / FILE) if not f.warning] == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is made with Python 3.11")
def test_the_pins_are_all_that_production_needs_and_nothing_else() -> None:
    kept = (ROOT / FILE).read_text()
    assert kept == pins.text(), "python -m tests.support.pins writes it anew"


def test_every_requirement_of_every_extra_for_production_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(pins.EXTRAS) <= set(extras)
    wanted = [*project["dependencies"], *(text for name in pins.EXTRAS for text in extras[name])]
    names = {canonicalize_name(Requirement(line).name) for line in pins.pinned(ROOT / FILE)}
    assert {canonicalize_name(Requirement(text).name) for text in wanted} - names == set()
