"""Paths: absolute in config files, from the working folder on a command line; there, readable, writable."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import psutil

from ..masking import URL
from .bounded import STUCK, bounded
from .findings import Finding
from .schema import Config

DATA, FROZEN = ("data.train_files", "data.val_files"), "frozen"
READ = (*DATA, FROZEN)
MODEL = "model.actor.path"
ROLLOUTS, RUN_DIR = "storage.rollout_storage_uri", "--run-dir"
STATE_LOG = "training.fault_tolerance.state_log_path"
WRITE = (ROLLOUTS, "storage.checkpoint_uri", STATE_LOG, "backup.local_backup_dir")
_URI = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")
_HUB = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_RELATIVE = "write it absolute, or pass it with --set: paths there are made absolute from the working folder"


def local_path(text: str) -> str | None:
    """The path that a path or a ``file://`` URI names; None for another scheme."""
    scheme = _URI.match(text)
    if scheme is None:
        return text
    return text[len("file://") :] if scheme.group(1).lower() == "file" else None


def is_hub_name(text: str) -> bool:
    """``org/name`` that is nothing on this disk."""
    return _HUB.match(text) is not None and not os.path.exists(text)


def make_absolute(tree: dict[str, object], folder: Path) -> None:
    """Make the paths in a tree of keys absolute from ``folder``, in place. Interpolations and hub names stay."""

    def change(key: str, text: str) -> str:
        hub = key == MODEL and is_hub_name(text)
        stays = hub or not text or text.startswith(("~", "${", "???")) or _URI.match(text)
        return text if stays else os.path.normpath(folder / text)

    for key in (*READ, MODEL, *WRITE):
        *blocks, name = key.split(".")
        node: object = tree
        for block in blocks:
            node = node.get(block) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            continue
        value = node.get(name)
        if isinstance(value, str):
            node[name] = change(key, value)
        elif isinstance(value, list):
            node[name] = [change(key, v) if isinstance(v, str) else v for v in value]


def expand_home(config: Config) -> None:
    """Put the home folder for ``~`` in all paths, in place."""
    for key in (*READ, MODEL, *WRITE):
        block, _, name = key.rpartition(".")
        holder = attrgetter(block)(config) if block else config
        value: str | list[str] | None = getattr(holder, name)
        if isinstance(value, str):
            setattr(holder, name, os.path.expanduser(value))
        elif value is not None:
            setattr(holder, name, [os.path.expanduser(v) for v in value])


def check_paths(config: Config, run_dir: str | None = None) -> list[Finding]:
    """Relative, missing, unreadable and unwritable paths. The model folder's content is ``check_model_folder``'s."""
    found: list[Finding] = []
    for key, text in _given(config, READ if config.data.task is None else (FROZEN,)):
        found += _local(key, text, _readable)
    found += _model(config.model.actor.path)
    run = [(RUN_DIR, run_dir if _URI.match(run_dir) else os.path.abspath(run_dir))] if run_dir else []
    for key, text in (*_given(config, WRITE), *run):
        found += _local(key, text, _writable)
    return [*found, *_slow(config, run_dir)]


def network_file_system(path: str, mounts: Sequence[tuple[str, str]] | None = None) -> str | None:
    """``nfs`` or ``nfs4`` when the mount that holds ``path`` is one; ``mounts`` are (mount point, type)."""
    if mounts is None:
        mounts = [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)]
    holding = [(point, kind) for point, kind in mounts if Path(path).is_relative_to(point)]
    kind = max(holding, key=lambda mount: len(mount[0]), default=("", ""))[1]
    return kind if kind.startswith("nfs") else None


def _slow(config: Config, run_dir: str | None) -> Iterator[Finding]:
    rollouts = config.storage.rollout_storage_uri
    path = local_path(rollouts or run_dir or "")
    if path and (kind := network_file_system(os.path.abspath(path))):
        remedy = "a local disk commits faster, and has locks that can be trusted"
        yield Finding(ROLLOUTS if rollouts else RUN_DIR, f"{path} is on {kind}", remedy, warning=True)


def _given(config: Config, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key in keys:
        value: str | list[str] | None = attrgetter(key)(config)
        yield from ((key, text) for text in ([value] if isinstance(value, str) else value or []))


def _local(key: str, text: str, check: Callable[[str, str], list[Finding]]) -> list[Finding]:
    if URL.search(text):  # it would stand in every message and record
        return [Finding(key, "a URI with a password or key in it", "give them by the environment of the store")]
    path = local_path(text)
    if path is None:
        return []
    if not os.path.isabs(path):
        return [Finding(key, f"relative path {text!r}", _RELATIVE)]
    return _answered(key, path, lambda: check(key, path))


def _answered(key: str, path: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return bounded(look)
    except TimeoutError as error:
        return [Finding(key, f"{path}: {error}", STUCK)]


def _model(text: str) -> list[Finding]:
    if is_hub_name(text):
        remedy = "download it first (hf download NAME --local-dir DIR) and give that folder; a start never downloads"
        return [Finding(MODEL, f"{text!r} is no folder here, but looks like a hub name", remedy)]
    if _URI.match(text):
        return [Finding(MODEL, f"{text!r} is a URI", "copy the model to a local folder and give its path")]
    return [] if os.path.isabs(text) else [Finding(MODEL, f"relative path {text!r}", _RELATIVE)]


def _readable(key: str, path: str) -> list[Finding]:
    names = glob.glob(path, recursive=True) if glob.has_magic(path) and not os.path.exists(path) else [path]
    if not names:
        return [Finding(key, f"no file matches {path}", "check the pattern")]
    return [Finding(key, f"{name}: {why}", remedy) for name in names for why, remedy in _trouble(name)]


def _trouble(path: str) -> Iterator[tuple[str, str]]:
    """Why a data file or folder cannot be read. Reading a byte is the only test that holds for root as well."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.listdir(path)
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                file.read(1)
        else:
            yield "neither a file nor a folder", "give a file, a folder or a glob"
    except FileNotFoundError:
        yield "does not exist", "check the path"
    except OSError as e:
        yield f"cannot be read ({e.strerror})", "check its permissions and its mount"


def _writable(key: str, path: str) -> list[Finding]:
    """Whether a folder or file could be made: looks only at what exists, and writes nothing."""
    there = Path(path)
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    is_file = key == STATE_LOG and str(there) == path
    if not is_file and not there.is_dir():
        return [Finding(key, f"{there} is not a folder", "give a folder, or move what is there")]
    if not os.access(there, os.W_OK if is_file else os.W_OK | os.X_OK):
        return [Finding(key, f"{there} cannot be written", "check its permissions and mount, or give another place")]
    return []
