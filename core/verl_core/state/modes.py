"""How a run may write, chosen by what its stores can really do."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigError
from ..protocols import FileStorage, Storage
from .journal import lockable


def check_modes(places: Mapping[str, Storage], log: Storage, *, single_committer: bool) -> None:
    """Refuse stores on which two controllers could overwrite each other. ``places``: by the key that names them.

    A file system publishes by renaming, a store that creates if absent is fenced by that. One that does neither needs
    ``single_committer``, and a state log whose lock keeps a second controller away. Raises ConfigError.
    """
    if not (lockable(log) or log.capabilities().conditional_put):
        raise ConfigError(
            "the state log needs a file system with locks, or a store that honours create-if-absent",
            where=log.uri,
            remedy="set training.fault_tolerance.state_log_path to a path",
        )
    for key, storage in places.items():
        if isinstance(storage, FileStorage) or storage.capabilities().conditional_put:
            continue
        if not single_committer:
            remedy = "use another store; or set storage.single_committer=true, so that the controller alone commits"
        elif not lockable(log):
            remedy = "with storage.single_committer, set training.fault_tolerance.state_log_path to a path"
        else:
            continue
        raise ConfigError(f"{key}: this store ignores create-if-absent", where=storage.uri, remedy=remedy)
