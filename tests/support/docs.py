"""The documents as data, and a place where their blocks are carried out.

What stands behind the language of a block says what it is: ``bash no-test`` (needs a network or minutes), ``bash
run=NAME`` (``$RUN`` is a run of that kind), ``python file=PATH`` (a file to be written; likewise YAML and TOML), ``text
output`` (lines that the document's commands print), ``text paths`` and ``json keys=PATH`` (of a run).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def option(self, name: str) -> str | None:
        """The value of ``name=value`` behind the language."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), None)


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match[2].split() or [""]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(line, language, tuple(words), dedent(match[3])))
    return found


def tables(document: Path) -> Iterator[list[str]]:
    """The cells of every row whose first cell is code, without its marks."""
    for line in document.read_text().splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> str:
    """``word`` of a cell that is one piece of code."""
    assert re.fullmatch(r"`[^`]+`", cell), cell
    return cell[1:-1]


@dataclass
class Place:
    """A scratch folder for one document: blocks run in it in order, and what they print is kept."""

    folder: Path
    environment: dict[str, str]
    make_run: Callable[[str, Path], None]
    printed: set[str] = field(default_factory=set)
    _exports: str = ""
    _run: str = ""

    def carry_out(self, block: Block, name: str) -> None:
        if (path := block.option("file")) is not None:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(block.text)
        elif block.language == "bash" and "no-test" not in block.words:
            self._bash(block, name)
        elif block.language == "python":
            self._python(block, name)

    def masked(self, line: str) -> str:
        """A line without what differs from run to run: places, hashes, numbers, width."""
        line = re.sub(r"\b[0-9a-f]{16,}\b", "H", line.replace(str(self.folder), "/home/you"))
        return " ".join(re.sub(r"[-+]?\d([\d,.]*\d)?", "N", line).split())

    def _bash(self, block: Block, name: str) -> None:
        kind = block.option("run")
        if kind is not None and kind != self._run:
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            self.make_run(kind, self.folder / "run")
            self._run = kind
        script = f"set -euo pipefail\n{self._exports}{block.text}"
        environment = {**os.environ, **self.environment, "RUN": str(self.folder / "run")}
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{name}:{block.line} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        self._exports += "".join(re.findall(r"^export .*\n", block.text, re.MULTILINE))
        self._keep(done.stdout + done.stderr)

    def _python(self, block: Block, name: str) -> None:
        importlib.invalidate_caches()
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, f"{name}:{block.line}", "exec"), {"__name__": "__main__"})
        self._keep(out.getvalue())

    def _keep(self, text: str) -> None:
        self.printed |= {self.masked(line) for line in text.splitlines()}


def environment(model: Path, data: Path) -> dict[str, str]:
    """What the blocks may rely on: the command, a model and a data file, a wide screen."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": path,
        "MODEL": str(model),
        "DATA": str(data),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
    }
