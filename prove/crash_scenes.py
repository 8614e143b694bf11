"""What is done to the files of a run, and what must be true of every state that a power cut leaves of it.

A scene is a small world: operations that each stand for a process of its own, a look at what a reader finds before
anybody repairs it, and the recovery that the product would make. Nothing is remembered between two of them but what
lies on disk, so that a scene goes on from any state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from .crash_batches import Batches
from .crash_runs import Folders, Runs
from .crash_saves import Saves
from .small_run import Shape
from .small_workers import Promise

Promises = Mapping[tuple[str, str], str]  # kind, name → value


class Scene(Protocol):
    """Every method works below ``root``, a folder that is there, and raises what it finds wrong."""

    operations: ClassVar[Sequence[str]]
    weight: ClassVar[int]  # workloads for one of the others: scenes with few or cheap states have more

    @property
    def name(self) -> str: ...

    @property
    def growing(self) -> Sequence[str]:
        """Files that a recovery may change though nothing was wrong."""
        ...

    def perform(self, root: str, operation: str, promise: Promise) -> None:
        """One process: it does its work, tells what it promises, and ends or dies."""
        ...

    def inspect(self, root: str, promises: Promises) -> None:
        """Everything promised is there, and everything that is taken for whole is whole."""
        ...

    def aim(self, root: str) -> int:
        """How far a recovery from here is to go, for the two calls below."""
        ...

    def recover(self, root: str, aim: int, promise: Promise) -> None:
        """Start again and go on as the product does. Done twice, the second time changes nothing."""
        ...

    def inspect_end(self, root: str, aim: int, promises: Promises) -> None:
        """It is the end that an undisturbed one has."""
        ...


_SCENES: tuple[Scene, ...] = (
    Runs(Shape(keep=1)),
    Runs(Shape(keep=2, log_apart=True)),
    Batches(),
    Saves(),
    Folders(Shape()),
    Folders(Shape(log_apart=True)),
)
SCENES: Mapping[str, Scene] = {scene.name: scene for scene in _SCENES}
