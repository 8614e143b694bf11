"""What a migration is: the files, components and tensors of a newer schema, made from those of the one before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...errors import DamagedCheckpoint, VerlError
from ...protocols import CheckpointReader
from ...types import Slice, TensorChunk

ReadFile = Callable[[str], bytes]  # path below the checkpoint's folder, as the old schema named it
Make = Callable[[ReadFile], bytes]


@dataclass(frozen=True, slots=True)
class Migration:
    """From one schema to the next. What it does not name is the same in both."""

    reason: str  # what changed, for people
    files: Mapping[str, Make] = field(default_factory=dict)  # path today → how its content is made
    components: Mapping[str, str] = field(default_factory=dict)  # name today → name then
    tensors: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (component, name) today → name then


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schema that cannot be read any more."""

    reason: str
    remedy: str


Step = Migration | Refusal


def moved(path: str) -> Make:
    """A file that only had another name."""
    return lambda read: read(path)


class Migrated:
    """A ``CheckpointReader`` of the next schema on top of one of the schema before."""

    def __init__(self, inner: CheckpointReader, migration: Migration, where: str) -> None:
        self.step = inner.step
        self._inner, self._migration, self._where = inner, migration, where

    def file(self, path: str) -> bytes:
        """Raises ``DamagedCheckpoint`` when the old file is not what its schema says."""
        make = self._migration.files.get(path)
        if make is None:
            return self._inner.file(path)
        try:
            return make(self._inner.file)
        except VerlError:
            raise
        except (ValueError, KeyError, TypeError, IndexError) as error:
            what = f"{path} cannot be migrated: {type(error).__name__}: {error}"
            raise DamagedCheckpoint(what, where=self._where, remedy="resume from another step") from error

    def read(self, component: str, piece: Slice) -> TensorChunk:
        name = self._migration.tensors.get((component, piece.name), piece.name)
        found = self._inner.read(self._migration.components.get(component, component), replace(piece, name=name))
        return replace(found, name=piece.name)
