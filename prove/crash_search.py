"""Enumerates crash states of the scenes' workloads and checks each one once.

Workloads are sequences of operations, all short ones and then longer ones with kills in them (ACE). Of each, the states
of its last operation are checked: those of the others belong to the shorter sequence. A state of a sample is also
recovered under the recorder, and the states of a power cut during that recovery are checked in turn.

Every state has a name that brings it back: scene, operations, cut and choice, and those of the cut during recovery.
"""

from __future__ import annotations

import itertools
import os
import random
import string
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from verl_core.errors import VerlError
from verl_core.testing.crash_states import CrashState, Volume, crash_state, crash_states
from verl_core.testing.disk import Killed, Operation, record
from verl_core.testing.trees import Tree, clear, materialise, tree_of

from .crash_scenes import SCENES, Scene
from .small_workers import pinned

_DIGITS = string.digits + string.ascii_letters  # one for each way in which an effect may end
_NAMES = 1 << 20  # a process that comes later counts its names from so much more on: they never meet


@dataclass(frozen=True, slots=True)
class Workload:
    """``operations`` of a scene; ``go@7`` is killed before its seventh change."""

    scene: str
    operations: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scene}:{','.join(self.operations)}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a workload, or a recovery, did on top of ``start``; cuts ``since`` are its own."""

    name: str
    scene: Scene
    start: Tree
    operations: Sequence[Operation]
    since: int
    nested: bool = False

    def id(self, state: CrashState) -> str:
        return f"{self.name}:{state.cut}:{''.join(_DIGITS[way] for way in state.choice)}"


@dataclass(slots=True)
class Found:
    """What a search found, so far. ``violations`` are names of states and what is wrong with them."""

    digests: set[bytes] = field(default_factory=set)  # of the states that were checked, each once
    states: Counter[str] = field(default_factory=Counter)  # the same by scene
    nested: int = 0  # of them, those of a cut during a recovery
    again: int = 0  # recoveries that were done twice, to see that the second one changes nothing
    workloads: int = 0
    cpu_s: float = 0.0  # of the process
    violations: list[str] = field(default_factory=list)


def workloads(seed: int, scenes: Sequence[str] = tuple(SCENES)) -> Iterator[Workload]:
    """Endless, and the same for the same seed. The scenes take turns, each with as many workloads as its weight."""
    streams = {name: _stream(name, random.Random(f"{seed} {name}")) for name in scenes}
    while True:
        for name, stream in streams.items():
            yield from itertools.islice(stream, SCENES[name].weight)


def _stream(scene: str, dice: random.Random) -> Iterator[Workload]:
    """All sequences of one, two and three operations, each followed by one with kills in it; then only those."""
    names = SCENES[scene].operations
    for length in (1, 2, 3):
        plain = list(itertools.product(names, repeat=length))
        dice.shuffle(plain)
        for operations in plain:
            yield Workload(scene, operations)
            yield _with_kills(scene, dice)
    while True:
        yield _with_kills(scene, dice)


def _with_kills(scene: str, dice: random.Random) -> Workload:
    """Two to four operations; all but the last may die on the way."""
    operations = [dice.choice(SCENES[scene].operations) for _ in range(dice.randint(2, 4))]
    for place in range(len(operations) - 1):
        if dice.random() < 0.6:
            operations[place] += f"@{int(2 ** dice.uniform(0, 7.5))}"
    return Workload(scene, tuple(operations))


class Search:
    """Checks states in ``folder``, a folder of its own.

    ``limit``: states of one cut; ``deep``: the share that is recovered from twice; ``nested``: the share whose recovery
    is cut in turn.
    """

    def __init__(self, folder: str, seed: int, *, limit: int = 24, deep: float = 0.06, nested: float = 0.003) -> None:
        self._record, self._state = f"{folder}/record", f"{folder}/state"
        for path in (self._record, self._state):
            os.makedirs(path, exist_ok=True)
        self._seed, self._limit, self._deep, self._nested = seed, limit, deep, nested
        self.found = Found()

    def run(self, todo: Iterator[Workload], until: float, most: int = 20) -> Found:
        """Until the time (of ``time.monotonic``), the end of the workloads, or so many violations."""
        for workload in todo:
            self.found.workloads += 1
            try:
                recorded = self.recorded(workload)
            except VerlError as error:  # a start after a kill is refused
                self.found.violations.append(f"{workload} — {error}")
            else:
                self._explore(recorded, until, most)
            if time.monotonic() >= until or len(self.found.violations) >= most:
                break
        return self.found

    def recorded(self, workload: Workload) -> Recorded:
        """Carry a workload out, from an empty folder."""
        scene, since = SCENES[workload.scene], 0
        clear(self._record)
        with record(self._record) as recording, pinned(1):
            for operation in workload.operations:
                since = len(recording.operations)
                kind, _, kill = operation.partition("@")
                if kill:
                    recording.kill_before(int(kill))
                with suppress(Killed):
                    scene.perform(self._record, kind, recording.promise)
                recording.revive()
        return self._checked(Recorded(str(workload), scene, {}, recording.operations, since))

    def recovery(self, name: str, scene: Scene, state: CrashState) -> Recorded:
        """Recover from a state, recorded. What was promised stays so."""
        materialise(state.tree, self._record)
        with record(self._record) as recording, pinned(_NAMES):
            for (kind, key), value in state.promises.items():
                recording.promise(kind, key, value)
            since = len(recording.operations)
            scene.recover(self._record, scene.aim(self._record), recording.promise)
        return self._checked(Recorded(name, scene, state.tree, recording.operations, since, nested=True))

    def check(self, recorded: Recorded, state: CrashState, *, deep: bool) -> str:
        """What is wrong with a state; "" when nothing is. ``deep``: a second recovery must change nothing."""
        scene, names = recorded.scene, 2 * _NAMES
        materialise(state.tree, self._state)
        try:
            scene.inspect(self._state, state.promises)
            aim = scene.aim(self._state)
            with pinned(names):
                scene.recover(self._state, aim, _forget)
            scene.inspect_end(self._state, aim, state.promises)
            if deep:
                before = _marks(self._state, scene.growing)
                with pinned(names + _NAMES):
                    scene.recover(self._state, aim, _forget)
                changed = before.items() ^ _marks(self._state, scene.growing).items()
                if changed:
                    return f"a second recovery changed {sorted({path for path, _ in changed})}"
                scene.inspect_end(self._state, aim, state.promises)
        except Exception as error:  # noqa: BLE001 - border: whatever a recovery raises is a finding
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = str(error).replace(f"{self._state}/", "")
            return f"{type(error).__name__}: {what} ({os.path.basename(place.filename)}:{place.lineno})"
        return ""

    # --- steps -------------------------------------------------------------------------------

    def _explore(self, recorded: Recorded, until: float, most: int) -> None:
        dice = random.Random(f"{self._seed} {recorded.name}")
        limit = max(2, self._limit // 4) if recorded.nested else self._limit
        for state in crash_states(
            recorded.operations, dice, start=recorded.start, since=recorded.since, limit=limit, new_only=True
        ):
            digest = state.digest()
            if digest in self.found.digests:
                continue
            self.found.digests.add(digest)
            chance = int.from_bytes(digest[:4], "big") / 2**32
            self._count(recorded, state, deep=chance < self._deep)
            if chance < self._nested and not recorded.nested:
                self._recover_from(recorded, state, until, most)
            if time.monotonic() >= until or len(self.found.violations) >= most:
                return

    def _count(self, recorded: Recorded, state: CrashState, *, deep: bool) -> None:
        wrong = self.check(recorded, state, deep=deep)
        self.found.states[recorded.scene.name] += 1
        self.found.nested += recorded.nested
        self.found.again += deep
        if wrong:
            self.found.violations.append(f"{recorded.id(state)} — {wrong}")

    def _recover_from(self, recorded: Recorded, state: CrashState, until: float, most: int) -> None:
        try:
            recovery = self.recovery(recorded.id(state), recorded.scene, state)
        except Exception:  # noqa: BLE001 - border: a state that cannot be recovered is found by whoever checks it
            return
        self._explore(recovery, until, most)

    def _checked(self, recorded: Recorded) -> Recorded:
        """Raises ``RuntimeError`` when something happened on the disk that the recording does not know."""
        volume = Volume(recorded.start)
        for operation in recorded.operations:
            volume.apply(operation)
        if volume.whole() != tree_of(self._record):
            raise RuntimeError(f"{recorded.name}: the files are not what the recording says")
        return recorded


def replay(search: Search, name: str) -> tuple[Recorded, CrashState]:
    """The state that a name stands for. Raises ``ValueError`` when it is not one."""
    scene, *rest = name.split(":")
    if scene not in SCENES or len(rest) not in (3, 5):
        raise ValueError(f"{name!r} is not the name of a crash state")
    recorded = search.recorded(Workload(scene, tuple(rest[0].split(","))))
    state = _at(recorded, rest[1], rest[2])
    if len(rest) == 5:
        recorded = search.recovery(recorded.id(state), recorded.scene, state)
        state = _at(recorded, rest[3], rest[4])
    return recorded, state


def _at(recorded: Recorded, cut: str, choice: str) -> CrashState:
    ways = [_DIGITS.index(digit) for digit in choice]
    return crash_state(recorded.operations, int(cut), ways, start=recorded.start)


def _marks(root: str, growing: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Every file with what changes when it is written anew; without those that may grow."""
    found: dict[str, tuple[int, int, int]] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            info = os.stat(path)
            found[os.path.relpath(path, root)] = info.st_ino, info.st_size, info.st_mtime_ns
    return {path: mark for path, mark in found.items() if path not in growing}


def _forget(kind: str, name: str, value: str) -> None: ...
