"""Whether the environment is the one that was pinned: each distribution of a requirements file, in exactly its version.

The file is that of ``pip freeze`` or ``pip-compile``: one ``name==version`` a line, with markers, comments and hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from .findings import Finding

FILE = "requirements-prod.txt"
_NOT_PINNED = {"pip", "setuptools", "wheel", "verl-core"}  # what installs, and what is installed with it
_BUILD = ("nvidia-", "cuda-", "triton")  # come with torch's CUDA build, and differ from driver to driver
_KEPT = {"nvidia-ml-py"}


@dataclass(frozen=True, slots=True)
class Pin:
    name: str  # as written
    requirement: Requirement
    where: str  # file:line


def check_frozen(file: Path, installed: Mapping[str, str] | None = None) -> list[Finding]:
    """Missing and other versions are errors, distributions that are not pinned one warning. ``installed``: name →
    version, by default those of this interpreter."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return [Finding(str(file), f"cannot be read ({type(error).__name__})", "give the file of pinned requirements")]
    here = distributions() if installed is None else {canonicalize_name(n): v for n, v in installed.items()}
    pins: dict[NormalizedName, Pin] = {}
    found: list[Finding] = []
    for item in _parsed(lines, str(file)):
        if isinstance(item, Finding):
            found.append(item)
        elif item.requirement.marker is None or item.requirement.marker.evaluate():
            pins[canonicalize_name(item.name)] = item
    for name, pin in sorted(pins.items()):
        version = str(pin.requirement.specifier).removeprefix("==")
        remedy = f"pip install -r {file}"
        if name not in here:
            found.append(Finding(pin.where, f"{pin.name} {version} is not installed", remedy))
        elif not pin.requirement.specifier.contains(here[name], prereleases=True):
            found.append(Finding(pin.where, f"{pin.name} is {here[name]}, pinned is {version}", remedy))
    extra = [f"{name} {here[name]}" for name in sorted(here.keys() - pins.keys()) if not _free(name)]
    if extra:
        what = f"installed, but not pinned: {', '.join(extra)}"
        found.append(Finding(str(file), what, "pin them, or build the image without them", warning=True))
    return found


def distributions() -> dict[NormalizedName, str]:
    """What this interpreter would import: the first of a name on its path."""
    found: dict[NormalizedName, str] = {}
    for one in metadata.distributions():
        if one.name:
            found.setdefault(canonicalize_name(one.name), one.version)
    return found


def _free(name: str) -> bool:
    return name in _NOT_PINNED or (name.startswith(_BUILD) and name not in _KEPT)


def _parsed(lines: list[str], file: str) -> Iterator[Pin | Finding]:
    number, text = 0, ""
    for line in lines:
        number += 1
        text += line.partition(" #")[0].strip()
        if text.endswith("\\"):  # hashes stand on the lines behind
            text = text[:-1]
            continue
        where, line, text = f"{file}:{number}", text.partition(" --hash")[0].partition("--hash")[0].strip(), ""
        if not line or line.startswith("#") or (line.startswith("--") and not line.startswith(("--requ", "--edit"))):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            yield Finding(where, f"not a pin: {line}", "write name==version")
            continue
        versions = list(requirement.specifier)
        exact = len(versions) == 1 and versions[0].operator == "==" and "*" not in versions[0].version
        if exact:
            yield Pin(requirement.name, requirement, where)
        else:
            yield Finding(where, f"not pinned to one version: {line}", "write name==version")
