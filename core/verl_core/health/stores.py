"""Whether every place that a run writes to takes a small object, gives it back, and lets it go."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial

from ..config.bounded import STUCK, bounded
from ..config.findings import Finding, where
from ..config.schema import Config
from ..errors import ConfigError, StorageError, StorageTimeout, VerlError
from ..protocols import FileStorage, Storage
from ..state.modes import check_modes
from ..writes import DOWN

PROBE = ".verl-core-probe-"
TIMEOUT_S = 60.0  # of one place, beyond the deadlines that stores have themselves
Open = Callable[[str], Storage]
_KEYS = ("storage.rollout_storage_uri", "storage.checkpoint_uri")
_LOG, _RUN = "training.fault_tolerance.state_log_path", "--run-dir"


def places_of(config: Config, run_dir: str | None) -> dict[str, str]:
    """Key → URI of every place that is written to."""
    log = config.training.fault_tolerance.state_log_path
    given = {
        _RUN: run_dir,
        _KEYS[0]: config.storage.rollout_storage_uri,
        _KEYS[1]: config.storage.checkpoint_uri,
        _LOG: (log.rpartition("/")[0] or "/") if log else None,
    }
    return {key: uri for key, uri in given.items() if uri}


def check_stores(
    config: Config,
    run_dir: str | None,
    open_at: Open,
    places: Mapping[str, str],
    *,
    skip: frozenset[str] = frozenset(),
    begun: bool = False,
) -> Iterator[VerlError | Finding | str]:
    """Errors, warnings, and in words what each store can do. ``skip``: keys that are known to be wrong. ``begun``: the
    run goes on, so that copies of checkpoints on this host can stand in for a store that is down."""
    spare = _KEYS[1] if begun and config.backup.local_backup_dir else ""
    opened: dict[str, Storage] = {}
    for key, uri in places_of(config, run_dir).items():
        if key in skip:
            continue
        try:
            opened[key] = open_at(uri)
            yield f"{uri}: {bounded(partial(_tried, opened[key], uri, open_at), TIMEOUT_S)}"
        except (TimeoutError, VerlError) as raised:
            opened.pop(key, None)
            error = StorageTimeout(str(raised), remedy=STUCK) if isinstance(raised, TimeoutError) else raised
            remedy = error.remedy or "check permissions and mount, or give another place"
            if key == spare and isinstance(error, DOWN):
                what = f"{error.what} ({uri}): the run goes on with its copies on this host"
                yield Finding(key, what, remedy, warning=True)
            else:
                yield type(error)(f"{error.what} ({uri})", where=where(key, places), remedy=remedy)
    log = opened.get(_LOG) or opened.get(_RUN)
    if log is None or skip:
        return
    written = {key: storage for key, storage in opened.items() if key != _LOG}
    try:
        check_modes(written, log, single_committer=config.storage.single_committer)
    except ConfigError as error:
        yield error


def _tried(storage: Storage, uri: str, open_at: Open) -> str:
    """What the store can do. Raises the error of the first call that fails; nothing is left behind."""
    can = storage.capabilities()
    storage = _standing(storage, uri, open_at)
    name, data = f"{PROBE}{os.getpid()}-{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        storage.put(name, data)
        if storage.get(name) != data:
            raise StorageError("it gives back other bytes than were written", remedy="use another store")
    finally:
        with suppress(StorageError):
            storage.delete(name)
    if storage.stat(name) is not None:
        raise StorageError("an object that was deleted is still there", remedy="give the right to delete, too")
    if can.publish and can.append and can.lock:
        return "a file system with locks"
    abilities = {
        "creates if absent": can.conditional_put,
        "renames folders": can.publish,
        "listings are consistent": can.consistent_list,
        f"encrypts ({can.encryption})": bool(can.encryption),
        "keeps old versions": can.versioned,
    }
    return ", ".join(name for name, able in abilities.items() if able) or "a plain store"


def _standing(storage: Storage, uri: str, open_at: Open) -> Storage:
    """On a file system: the folder that is there already, so that nothing has to be made for the probe."""
    if not isinstance(storage, FileStorage):
        return storage
    scheme, path = re.fullmatch(r"((?:[a-z0-9+.-]+://)?)(.*)", uri, re.IGNORECASE | re.DOTALL).groups()  # type: ignore[union-attr]  # matches all
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return open_at(scheme + path)
