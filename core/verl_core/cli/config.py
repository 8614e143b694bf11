"""``verl-core config import``: a config of another framework, written in our keys."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, cast

import typer
import yaml

from ..config.aliases import RESUME
from ..config.compose import read_yaml
from ..config.paths import make_absolute
from ..config.schema import Config
from ..config.shape import block_type, hints
from ..config.translate import Told, Translation, translate
from ..errors import InputError
from ..quickstart.folders import make_file

config = typer.Typer(help="Configs of other frameworks.", no_args_is_help=True)


@config.callback()
def _group() -> None:
    pass


@config.command("import")
def import_config(
    file: Annotated[str, typer.Argument(help="A YAML file of verl's ppo_trainer family, or with `train:`.")],
    out: Annotated[str | None, typer.Option("--out", help="A file that is not there yet; default: print it.")] = None,
) -> None:
    """Write a config in our keys: every key is taken over, or listed with its line and the reason why not."""
    done = translate(*read_yaml(Path(file)))
    make_absolute(done.tree, Path.cwd())
    text = "".join(_comments(done, file, out or "FILE")) + _yaml(done.tree)
    if out is None:
        typer.echo(text, nl=False)
    else:
        if Path(out).exists():
            raise InputError("is there already", where=out, remedy="name another file")
        make_file(Path(out), text.encode)
    taken = len(done.of("taken", "holds"))
    counts = f"{taken} keys taken over, {len(done.of('differs'))} mean something else here"
    counts += f", {len(done.of('none', 'option'))} have no counterpart, {len(done.of('unknown'))} unknown"
    typer.echo(f"{file}: {counts}", err=True)
    for told in done.told:
        if told.says:
            typer.echo(f"  {told}", err=True)


def _comments(done: Translation, file: str, out: str) -> Iterator[str]:
    yield f"# From {Path(file).name}, by verl-core config import.\n"
    options = {"--config": out, "--run-dir": "DIR", **_options(done)}
    command = " ".join(f"{name} {shlex.quote(value)}" for name, value in options.items())
    yield f"# Start: verl-core run {command}\n"
    for told in done.of("unknown", "differs", "none"):
        yield f"# {_line(told)}{told.key}: {told.says}\n"


def resume_asked(file: str) -> str:
    """What a file of another dialect says about resuming, as ``--resume`` takes it; ``auto`` when it says nothing."""
    return _options(translate(*read_yaml(Path(file)))).get(RESUME, "auto")


def _options(done: Translation) -> dict[str, str]:
    return dict(told.option for told in done.told if told.option is not None)


def _line(told: Told) -> str:
    number = told.place.rpartition(":")[2]
    return f"line {number}: " if number else ""


def _yaml(tree: Mapping[str, object]) -> str:
    return yaml.safe_dump(_sorted(tree, Config), sort_keys=False, allow_unicode=True, width=10_000)


def _sorted(tree: Mapping[str, object], record: type) -> dict[str, object]:
    """Keys in the schema's order, a plugin's own behind them."""
    known = {name: number for number, name in enumerate(hints(record))}
    found: dict[str, object] = {}
    for name in sorted(tree, key=lambda key: known.get(key, len(known))):
        value, inner = tree[name], block_type(hints(record).get(name))
        mapping = cast("Mapping[str, object]", value)
        found[name] = _sorted(mapping, inner) if inner is not None and isinstance(value, Mapping) else value
    return found
