"""The documents are true: every command and every block of code in them works, every table agrees with the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from verl_core import errors, hookspecs, protocols
from verl_core.config import read_config
from verl_core.config.constraints import NO_EFFECT
from verl_core.config.resume import MAY_CHANGE
from verl_core.config.schema import Config
from verl_core.errors import SafeModeError, VerlError
from verl_core.observers import HOOKS
from verl_core.plugins import load
from verl_core.registry import KINDS

from tests.support.docs import DOCUMENTS, ROOT, Block, Place, blocks, code, environment, tables
from tests.support.tiny import Tiny

DOCS = ROOT / "docs"
NAMES = {str(path.relative_to(ROOT)): path for path in DOCUMENTS}
LANGUAGES = {"bash", "python", "json", "yaml", "toml", "text"}
NO_TEST = re.compile(r"make |pip install |\.venv/bin/python -m pytest -m gpu ")
BUSY = ("README.md", "docs/interchange.md", "docs/runbook.md", "docs/write-a-plugin.md")


# --- commands and code ------------------------------------------------------------------------


@pytest.fixture
def place(
    tiny: Tiny, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Place:
    """An empty folder with a model ready where the documents make one, since that takes seconds."""

    def make_run(kind: str, run: Path) -> None:
        if kind == "safe-mode":
            with pytest.raises(SafeModeError):
                tiny.trainer(run, 8, ["model.reward.name=operator:truediv"]).run()
        else:
            tiny.trainer(run, 8).run(until_step=6)
        if kind == "damaged-checkpoint":
            spoil(next(run.glob("checkpoints/step_000006/actor/*.safetensors")))
        if kind == "damaged-batch":
            spoil(run / "rollouts/epoch_0/batch_1/samples.jsonl")

    for folder in ("runs/rough", "tiny"):
        shutil.copytree(tiny.model, tmp_path / folder / "model")
    environ = environment(tiny.model, tiny.data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("MODEL", "DATA"):
        monkeypatch.setenv(name, environ[name])
    return Place(tmp_path, environ, make_run)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in BUSY else n for n in NAMES])
def test_every_block_works_and_prints_what_the_page_says(name: str, place: Place, undisturbed: Path) -> None:
    found = blocks(NAMES[name])
    for block in found:
        assert block.language in LANGUAGES, f"{name}:{block.line}: which language?"
        place.carry_out(block, name)
        check_content(block, undisturbed)
        if "no-test" in block.words:
            assert all(NO_TEST.match(line) for line in block.text.splitlines()), f"{name}:{block.line}"
    for block in found:
        for line in block.text.splitlines() if "output" in block.words else ():
            assert line == "…" or place.masked(line) in place.printed, f"{name}:{block.line}: nothing prints {line!r}"


def check_content(block: Block, run: Path) -> None:
    """What a block that is no command holds."""
    if block.language == "json":
        record = run / str(block.option("keys"))
        want = json.loads(record.read_text().splitlines()[0])
        assert json.loads(block.text).keys() == want.keys(), record
    elif block.language == "yaml":
        (run.parent / "block.yaml").write_text(block.text)
        assert read_config(str(run.parent / "block.yaml"), ["model.actor.path=/m", "data.train_files=[/d]"])
    elif block.language == "toml":
        assert tomllib.loads(block.text)
    elif "paths" in block.words:
        patterns = [line.split()[0] for line in block.text.splitlines()]
        files = [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()]
        assert [p for p in patterns if not any(fnmatch(f, p) for f in files)] == []
        assert [f for f in files if not any(fnmatch(f, p) for p in patterns)] == []


# --- links ------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    """The headings of a page, as they are linked to."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", [*NAMES, "CONTRIBUTING.md"])
def test_every_relative_link_leads_somewhere(name: str) -> None:
    document = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index_and_the_readme_is_short() -> None:
    index = (DOCS / "index.md").read_text()
    pages = [path for path in DOCUMENTS if path not in (ROOT / "README.md", DOCS / "index.md")]
    assert [str(p) for p in pages if f"({p.relative_to(DOCS)})" not in index] == []
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


# --- tables -----------------------------------------------------------------------------------


def test_the_hooks_page_lists_exactly_the_hooks() -> None:
    listed = {code(row[0]): code(row[1]) for row in tables(DOCS / "hooks.md")}
    specs = {n: inspect.signature(f) for n, f in inspect.getmembers(hookspecs, inspect.isfunction) if f.__doc__ is None}
    wanted = {}
    for name, signature in specs.items():
        if name.startswith("register_"):
            wanted[name] = re.sub(r"Register(On)?\[(\w+)\]", r"\2", signature.parameters["register"].annotation)
        elif name in HOOKS:
            wanted[name] = ", ".join(f"{p.name}: {p.annotation}" for p in signature.parameters.values())
    assert listed == wanted


def test_the_hooks_page_names_what_is_offered() -> None:
    hooks = {code(row[0]): re.findall(r"`(\w+)`", row[3]) for row in tables(DOCS / "hooks.md") if len(row) == 4}
    kinds = {kind.name: kind.hook for kind in KINDS}
    offered: dict[str, list[str]] = {hook: [] for hook in hooks}
    for provider in load([]).registry.providers():
        offered[kinds[provider.kind]].append(provider.name)
    assert hooks == offered


def leaves(block: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted key and default of every key of the schema, without the providers' own."""
    for field in dataclasses.fields(block):  # type: ignore[arg-type]
        value = getattr(block, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        elif field.name != "options":
            yield f"{prefix}{field.name}", value


def test_the_config_page_has_every_key_with_its_default_and_whether_it_may_change() -> None:
    rows = [row for row in tables(DOCS / "config.md") if len(row) == 4]
    listed = [(code(key), json.loads(code(default)), may == "may change") for key, default, _, may in rows]
    free = tuple(f"{key}." for key in MAY_CHANGE)
    assert listed == [(k, v, f"{k}.".startswith(free)) for k, v in leaves(Config())]
    assert all(row[2] for row in rows)


def test_the_config_page_marks_exactly_the_keys_that_nothing_reads() -> None:
    marked = {code(row[0]) for row in tables(DOCS / "config.md") if row[2].startswith("no effect yet")}
    sources = [p for folder in ("core", "plugins") for p in (ROOT / folder).rglob("*.py")]
    read = {n.attr for p in sources for n in ast.walk(ast.parse(p.read_text())) if isinstance(n, ast.Attribute)}
    assert marked == {key for key, _ in leaves(Config()) if key.rpartition(".")[2] not in read}
    assert marked == set(NO_EFFECT), "a start warns of them"


def test_the_config_page_has_every_key_of_every_provider() -> None:
    text = (DOCS / "config.md").read_text()
    found = re.findall(r"^\| (\w+) `(\w+)` \| `[\w.]+` \| `(\w+)` \| `(.+?)` \| \S", text, re.MULTILINE)
    listed = {(kind, name, key): json.loads(default) for kind, name, key, default in found}
    offered = load([]).registry.providers()
    fields = {(p.kind, p.name, f.name): f.default for p in offered for f in dataclasses.fields(p.config_class)}  # type: ignore[arg-type]
    assert listed == fields


def test_the_runbook_has_every_exit_code() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| .*? \| (.*?) \|", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    listed = {int(c): re.findall(r"`(\w+)`", names) for codes, names in rows for c in codes.split(",")}
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, VerlError)]
    assert set(listed) == {c.exit_code for c in classes} | {0, 128 + 9, 128 + 15}
    assert {name: c for c, names in listed.items() for name in names}.items() <= {
        c.__name__: c.exit_code for c in classes
    }.items()


def test_the_errors_of_loading_are_those_of_the_code() -> None:
    source = "".join((ROOT / f"core/verl_core/{name}.py").read_text() for name in ("plugins", "registry"))
    parts = [part.strip() for row in tables(DOCS / "write-a-plugin.md") for part in code(row[0]).split("…")]
    assert len(parts) >= 8
    assert [part for part in parts if part not in source] == []


def test_the_architecture_page_names_every_room_and_every_protocol() -> None:
    text = (DOCS / "architecture.md").read_text()
    core = ROOT / "core/verl_core"
    rooms = [f"{p.name}/" if p.is_dir() else p.name for p in core.iterdir() if p.suffix in ("", ".py")]
    offered = [n for n, c in inspect.getmembers(protocols, inspect.isclass) if c.__module__ == protocols.__name__]
    missing = [n for n in (*rooms, *offered) if f"`{n}`" not in text and not n.startswith("__")]
    assert missing == []
