"""Distributions on disk: metadata, entry points and modules, as an installer leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

Install = Callable[..., None]


def write_distribution(
    folder: Path, distribution: str, plugins: Mapping[str, str], modules: Mapping[str, str], extras: str = ""
) -> None:
    """``plugins``: entry point → module; ``modules``: module → its text; ``extras``: names with spaces between."""
    info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    provides = "".join(f"Provides-Extra: {extra}\n" for extra in extras.split())
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {distribution}\nVersion: 1.2\n{provides}")
    entries = "".join(f"{name} = {module}\n" for name, module in plugins.items())
    (info / "entry_points.txt").write_text(f"[verl_core]\n{entries}")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
