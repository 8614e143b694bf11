"""A config file, the fragments of its ``defaults:`` list, and ``--set`` overrides as layers of keys, lowest first.

Entries of the list: ``_self_`` (the place of the file itself; default: last), ``other.yaml`` (merged where the file
is), ``model: NAME``, ``/cluster: NAME`` and the like (the fragment ``<group>/<NAME>.yaml``, merged at the group's
block). ``override`` before a group drops what an earlier entry chose for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import ConfigError
from .shape import block_of_group
from .suggest import did_you_mean
from .translate import understood

Tree = dict[str, object]
_KEY = re.compile(r"^[\w-]+(\.[\w-]+)*$")
_GROUP = re.compile(r"^(?:(override)\s+)?/?([\w-]+)$")


@dataclass(frozen=True, slots=True)
class Layer:
    """Keys from one source, at their place in the config's tree."""

    tree: Tree
    places: Mapping[str, str]  # dotted key → "file:line", or "--set"
    group: str | None = None  # of the defaults list that chose it
    typed: bool = False  # from a command line or a call: paths are relative to the working folder


def packaged_configs() -> Path:
    """The folder of the configs that ship with the package: inside a wheel, or in a checkout."""
    packaged = Path(__file__).parents[1] / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "configs"


def layers_of(
    file: Path, search: Sequence[Path] = (), block: str = "", group: str | None = None, above: tuple[Path, ...] = ()
) -> list[Layer]:
    """The layers of a file and of all that its ``defaults:`` list names. Raises ``ConfigError``."""
    if (real := file.resolve()) in above:
        chain = " → ".join(p.name for p in (*above[above.index(real) :], real))
        raise ConfigError(f"defaults include each other: {chain}", where=str(file), remedy="take one of them out")
    tree, marks = understood(*read_yaml(file), whole=True)
    entries = tree.pop("defaults", None) or []
    own = Layer({block: tree} if block else tree, {f"{block}.{k}" if block else k: v for k, v in marks.items()}, group)
    if not isinstance(entries, list):
        raise ConfigError("defaults is not a list", where=marks["defaults"], remedy="write one '- entry' a line")
    layers: list[Layer] = []
    for index, entry in enumerate(entries):
        place = marks[f"defaults.{index}"]
        if entry == "_self_":
            layers.append(own)
            continue
        override, chosen, name = _entry(entry, place)
        if name is None:
            continue
        if override:
            layers = [layer for layer in layers if layer.group != chosen]
        found = _find(f"{chosen}/{name}" if chosen else name, file, search, place)
        into = block if chosen is None else block_of_group(chosen)
        layers += layers_of(found, search, into, chosen or group, (*above, real))
    return layers if any(layer is own for layer in layers) else [*layers, own]


def read_yaml(file: Path) -> tuple[Tree, dict[str, str]]:
    """``parse_yaml`` of a file. Raises ``ConfigError``."""
    try:
        return parse_yaml(file.read_text("utf-8"), str(file))
    except FileNotFoundError:
        raise ConfigError("no such config file", where=str(file), remedy="check the path") from None
    except (OSError, UnicodeDecodeError) as e:
        what = f"config file cannot be read ({type(e).__name__})"
        raise ConfigError(what, where=str(file), remedy="is it a readable YAML file in UTF-8?") from None


def parse_yaml(text: str, name: str) -> tuple[Tree, dict[str, str]]:
    """The keys of a YAML text, interpolations untouched, and the place of each (dotted key → ``name:line``)."""
    marks: dict[str, str] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise ConfigError("not a config", where=name, remedy="write keys and values: 'key: value'")
        marks |= _marks(root, name)
        tree = OmegaConf.to_container(OmegaConf.create(text)) if root is not None else {}
    except yaml.YAMLError as e:
        raise _yaml_error(e, name) from None
    except OmegaConfBaseException as e:
        key = e.full_key or ""
        where = f"{marks[key]}: {key}" if key in marks else name
        raise ConfigError("malformed interpolation", where=where, remedy="write ${oc.env:NAME} or ${a.b}") from None
    return cast(Tree, tree), marks


def override_layer(text: str) -> Layer:
    """``a.b=value`` (the value is YAML) as a layer."""
    key, equals, _ = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.match(key):
        raise ConfigError("not an override", where=f"--set {key}", remedy="write --set key.of.block=value")
    try:
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([text.strip()]))
    except (yaml.YAMLError, OmegaConfBaseException) as e:
        what, remedy = f"the value is not valid YAML ({type(e).__name__})", "quote it: --set 'key=\"value\"'"
        raise ConfigError(what, where=f"--set {key}", remedy=remedy) from None
    parts = key.split(".")
    places = {".".join(parts[: i + 1]): "--set" for i in range(len(parts))}
    return Layer(*understood(cast(Tree, tree), places, whole=False), typed=True)


def _entry(entry: object, place: str) -> tuple[bool, str | None, str | None]:
    """(override, group, name) of an entry of a defaults list; a name of None chooses nothing."""
    if isinstance(entry, str):
        return False, None, entry
    if isinstance(entry, dict) and len(entry) == 1:
        [(key, name)] = entry.items()
        match = _GROUP.match(str(key))
        if match and (name is None or isinstance(name, str)):
            return match.group(1) is not None, match.group(2), name
    remedy = "write '- other.yaml', '- model: NAME', '- override /model: NAME' or '- _self_'"
    raise ConfigError("not an entry of a defaults list", where=place, remedy=remedy)


def _find(name: str, file: Path, search: Sequence[Path], place: str) -> Path:
    """The fragment ``name``: beside the file, in ``configs/`` there or one folder up, on the search path, packaged."""
    name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    folder = file.absolute().parent
    roots = (folder, folder / "configs", folder.parent, folder.parent / "configs", *search, packaged_configs())
    for root in roots:
        if (root / name).is_file():
            return root / name
    there = {p.stem for root in roots for p in (root / name).parent.glob("*.yaml")}
    raise ConfigError(f"no fragment {name}", where=place, remedy=did_you_mean(Path(name).stem, there))


def _marks(node: yaml.Node | None, file: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        children = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(index), value, value) for index, value in enumerate(node.value)]
    else:
        return
    for name, at, value in children:
        yield f"{prefix}{name}", f"{file}:{at.start_mark.line + 1}"
        yield from _marks(value, file, f"{prefix}{name}.")


def _yaml_error(error: yaml.YAMLError, file: str) -> ConfigError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line = error.problem_mark.line + 1
        return ConfigError(f"not valid YAML: {error.problem}", where=f"{file}:{line}", remedy="correct this line")
    return ConfigError(f"not valid YAML: {str(error).splitlines()[0]}", where=file, remedy="correct the file")
