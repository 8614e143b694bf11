"""Small file systems in memory, for what a full or read-only disk does. Needs root, as the containers of CI have it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tmpfs(folder: Path, size_mb: int) -> Iterator[Path]:
    """A tmpfs of ``size_mb`` at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "-l", str(folder))


def remount(folder: Path, how: str) -> None:
    """``ro`` or ``rw``."""
    _run("mount", "-o", f"remount,{how}", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr} (these tests need root)"
