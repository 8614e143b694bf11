"""What commands that read a run share: finding its storage by the URI's scheme, and its state log."""

from __future__ import annotations

from dataclasses import dataclass

from .. import plugins as plugin_loader
from ..api import absolute_uri
from ..config.schema import Config
from ..errors import InputError
from ..inputs import CONFIG, log_place, provider_of, saved_config, storage_at
from ..plugins import Loaded
from ..protocols import Storage
from ..state.claim import RUN


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run for reading: its folder, its config, and where its state log lies."""

    storage: Storage
    config: Config | None  # None: the run was killed before it wrote its config
    log_storage: Storage
    log_path: str
    plugins: Loaded


def find_run(run: str) -> RunPlace:
    """Open the run at a path or URI. Raises InputError where there is none."""
    uri = absolute_uri(run)
    plugins = plugin_loader.load([provider_of(uri)], defaults=False)
    storage = storage_at(plugins, Config(), uri)
    if storage.stat(RUN) is None:
        raise InputError("no run here", where=uri, remedy="give the folder that --run-dir named")
    config = saved_config(storage.get(CONFIG)) if storage.stat(CONFIG) is not None else None
    if config is not None:
        block, log_at = config.storage, config.training.fault_tolerance.state_log_path
        places = (uri, block.rollout_storage_uri, block.checkpoint_uri, log_at)
        plugins = plugin_loader.load([provider_of(place) for place in places if place], defaults=False)
    log_storage, log_path = log_place(plugins, config or Config(), storage)
    return RunPlace(storage, config, log_storage, log_path, plugins)
