"""``requirements-prod.txt``: what the package and its extras for production need, in the versions installed here.

``python -m tests.support.pins`` writes it anew, after the environment was locked anew.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILE = ROOT / "requirements-prod.txt"
EXTRAS = ("s3", "oss", "cos", "fsdp", "hf", "data", "reasoning-gym", "gpu")
HEAD = """\
# What a production image holds beside the package itself, in exactly these versions: `verl-core check --frozen` holds
# an environment against it. Libraries that come with a CUDA build of torch (nvidia-*, triton) follow its version.
"""


def text() -> str:
    """The file as it must be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    seen: set[tuple[str, str]] = set()
    names = (n for line in (*project["dependencies"], *extras) for n in _closure(Requirement(line), seen))
    found: dict[str, str] = {canonicalize_name(name): metadata.version(name).partition("+")[0] for name in names}
    found.pop("setuptools", None)  # of the interpreter's environment, like pip
    return HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))


def pinned(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line and not line.startswith("#")]


def _closure(wanted: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """A distribution and all that it requires with these extras, on this platform."""
    yield wanted.name
    for extra in ("", *sorted(wanted.extras)):
        if (canonicalize_name(wanted.name), extra) in seen:
            continue
        seen.add((canonicalize_name(wanted.name), extra))
        for inner in map(Requirement, metadata.requires(wanted.name) or []):
            if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                yield from _closure(inner, seen)


if __name__ == "__main__":
    FILE.write_text(text())
