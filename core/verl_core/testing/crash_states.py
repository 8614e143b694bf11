"""Which states of the files below one folder a power cut may leave, from a recording of what was done to them.

The model is the weak one of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014), applied after
every operation as CrashMonkey and ACE do (Mohan et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash
Testing", OSDI 2018). It assumes no more than this of a file system:

- ``fsync`` and ``fdatasync`` of a file make its content durable, never its name. Content that was not synced may be
  lost, kept, cut short or torn: a length without the data (zeros), the front without the rest, the rest without the
  front, or foreign bytes.
- ``fsync`` of a folder makes durable which names it holds. A name that was made or removed and not synced may be there
  or not, each independent of every other and of the content. What lies in a lost folder is lost.
- A rename is atomic: both names change, or neither. It is durable with the sync of the folder that it leads into; a
  sync of the folder that it leads out of is not enough. A file that is renamed over is the old one or the new one.
- A folder has one name at a time. Nothing that was durable is damaged.

A journalling file system that keeps the order of its metadata (ext4) leaves a subset of these states: those in which
the names are a prefix of what was done. They are always among those that are enumerated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod

from blake3 import blake3

from .disk import Linked, MadeFolder, Opened, Operation, Promised, Removed, Renamed, Resized, Synced, Wrote
from .torn import Content
from .trees import Tree

_ROOT = 0
Names = dict[int, dict[str, int]]  # folder → name → file or folder
Promises = Mapping[tuple[str, str], str]  # kind, name → value


@dataclass(frozen=True, slots=True)
class _Change:
    """One transaction on names: something gets a name, loses one, or both."""

    home: int  # the folder whose sync makes it durable
    node: int
    gained: tuple[int, str] | None = None
    lost: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class CrashState:
    """One state that may be found after the power went. ``cut`` and ``choice`` bring it back, see ``crash_state``."""

    cut: int  # operations that the kernel was asked for
    choice: tuple[int, ...]  # how each effect that was not durable ended: 0 as if never done, the highest as if synced
    tree: Tree
    promises: Promises

    def digest(self) -> bytes:
        """16 bytes; equal states have equal digests."""
        found = blake3()
        for name, content in sorted(self.tree.items()):
            found.update(b"%d %s " % (-1 if content is None else len(content), name.encode()) + (content or b""))
        found.update(repr(sorted(self.promises.items())).encode())
        return found.digest(16)


class Volume:
    """Files as the kernel has them, and what of them is durable."""

    def __init__(self, start: Tree) -> None:
        self._live: Names = {_ROOT: {}}
        self._durable: Names = {_ROOT: {}}
        self._contents: dict[int, Content] = {}
        self._pending: list[_Change] = []
        self._handles: dict[int, int] = {}
        self._nodes = _ROOT
        self._dirty: list[int] | None = None
        self.promises: dict[tuple[str, str], str] = {}
        for path in sorted(start):
            content = start[path]
            folder, name = self._place(path)
            node = self._new(content)
            self._live[folder][name] = self._durable[folder][name] = node

    def apply(self, operation: Operation) -> None:
        """Carry out one operation. Raises ``KeyError`` when it cannot have been the next one."""
        self._dirty = None
        match operation:
            case Opened(handle, path, made, emptied):
                if made:
                    self._name(path, self._new(b""))
                self._handles[handle] = self._node(path)
                if emptied:
                    self._contents[self._handles[handle]].resize(0)
            case Wrote(handle, start, data):
                self._contents[self._handles[handle]].write(start, data)
            case Resized(handle, size):
                self._contents[self._handles[handle]].resize(size)
            case Synced(handle):
                self._sync(self._handles[handle])
            case MadeFolder(path):
                self._name(path, self._new(None))
            case Linked(path, target):
                self._name(target, self._node(path))
            case Renamed(path, target):
                place = self._place(path)
                self._name(target, self._live[place[0]].pop(place[1]), place)
            case Removed(path):
                folder, name = self._place(path)
                self._pending.append(_Change(folder, self._live[folder].pop(name), lost=(folder, name)))
            case Promised(kind, name, value):
                self.promises.pop((kind, name), None)
                if value:
                    self.promises[kind, name] = value

    def ways(self) -> list[int]:
        """In how many ways each effect that is not durable may end: names first, then contents."""
        return [2] * len(self._pending) + [len(self._contents[node].outcomes()) for node in self._written()]

    def newest(self, operation: Operation | None) -> int | None:
        """Which of ``ways`` the operation, the last one applied, brought; None when it brought none of its own."""
        match operation:
            case MadeFolder() | Renamed() | Linked() | Removed() | Opened(_, _, True, _):
                return len(self._pending) - 1
            case Wrote(handle) | Resized(handle) | Opened(handle):
                node = self._handles[handle]
                return len(self._pending) + self._written().index(node) if node in self._written() else None
        return None

    def tree(self, choice: Sequence[int]) -> Tree:
        """The files after a power cut; ``choice`` has one number below each of ``ways``."""
        changed: Names = {}
        for change, kept in zip(self._pending, choice, strict=False):
            if kept:
                self._carry_out(change, changed)
        ends = dict(zip(self._written(), choice[len(self._pending) :], strict=True))
        return self._tree({**self._durable, **changed}, ends)

    def whole(self) -> Tree:
        """The files without a power cut."""
        return self._tree(self._live, dict.fromkeys(self._written(), -1))

    # --- steps -------------------------------------------------------------------------------

    def _new(self, content: bytes | None) -> int:
        self._nodes += 1
        if content is None:
            self._live[self._nodes], self._durable[self._nodes] = {}, {}
        else:
            self._contents[self._nodes] = Content(content)
        return self._nodes

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        return self._node(folder), name

    def _node(self, path: str) -> int:
        node = _ROOT
        for name in filter(None, path.split("/")):
            node = self._live[node][name]
        return node

    def _name(self, path: str, node: int, lost: tuple[int, str] | None = None) -> None:
        folder, name = self._place(path)
        self._live[folder][name] = node
        self._pending.append(_Change(folder, node, (folder, name), lost))

    def _sync(self, node: int) -> None:
        if node in self._contents:
            self._contents[node].sync()
            return
        still: list[_Change] = []
        for change in self._pending:
            if change.home != node:
                still.append(change)
                continue
            changed: Names = {}
            self._carry_out(change, changed)
            self._durable.update(changed)
            still = [earlier for earlier in still if not self._superseded(earlier, change)]
        self._pending = still

    def _superseded(self, earlier: _Change, later: _Change) -> bool:
        """Whether a change that has become durable leaves nothing of an earlier one to be decided."""
        if earlier.gained is not None and earlier.node == later.node:
            return later.node in self._live or earlier.gained == later.lost
        return later.gained is None and earlier.home == later.node  # in a folder that is gone

    def _carry_out(self, change: _Change, changed: Names) -> None:
        """On copies in ``changed`` of the folders that it touches. A name is taken only from what was given it."""
        places = {change.lost}
        if change.gained is not None and change.node in self._live:  # a folder: it had one of these names
            places.update(chain.from_iterable((p.gained, p.lost) for p in self._pending if p.node == change.node))
        for folder, name in filter(None, places):
            if changed.get(folder, self._durable[folder]).get(name) == change.node:
                self._copied(folder, changed).pop(name)
        if change.gained is not None:
            folder, name = change.gained
            self._copied(folder, changed)[name] = change.node

    def _copied(self, folder: int, changed: Names) -> dict[str, int]:
        if folder not in changed:
            changed[folder] = dict(self._durable[folder])
        return changed[folder]

    def _written(self) -> list[int]:
        """Files with content that is not durable, and with a name that might be."""
        if self._dirty is None:
            named = {p.node for p in self._pending if p.gained is not None}
            named.update(*(names.values() for names in self._durable.values()))
            self._dirty = [node for node, content in self._contents.items() if content.dirty and node in named]
        return self._dirty

    def _tree(self, names: Names, ends: Mapping[int, int]) -> Tree:
        found: dict[str, bytes | None] = {}
        waiting = [("", _ROOT)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, node in names[folder].items():
                if node in self._contents:
                    found[prefix + name] = self._contents[node].end(ends.get(node, 0))
                else:
                    found[prefix + name] = None
                    waiting.append((f"{prefix}{name}/", node))
        return found


def crash_states(
    operations: Sequence[Operation],
    dice: random.Random,
    *,
    start: Tree,
    since: int = 0,
    limit: int = 64,
    new_only: bool = False,
) -> Iterator[CrashState]:
    """States that a cut after each of ``operations[since:]`` may leave, on top of ``start``, which is durable.

    Of a cut that allows more than ``limit``, so many are drawn with ``dice``. Equal states may come more than once.
    ``new_only``: what the cut before allowed with the same promises does not come again.
    """
    volume = Volume(start)
    all_came = False  # of those that the cut before allowed
    for cut in range(len(operations) + 1):
        operation = operations[cut - 1] if cut else None
        if operation is not None:
            volume.apply(operation)
        follows = new_only and cut > since
        if cut < since or (cut > since and _changes_nothing(operation, follows and all_came)):
            continue
        ways, promises = volume.ways(), dict(volume.promises)
        new = volume.newest(operation) if follows else None
        all_came = prod(ways) <= limit and (new is None or all_came)
        for choice in choices(ways, limit, dice, new):
            yield CrashState(cut, choice, volume.tree(choice), promises)


def crash_state(operations: Sequence[Operation], cut: int, choice: Sequence[int], *, start: Tree) -> CrashState:
    """The one state of this cut and choice."""
    volume = Volume(start)
    for operation in operations[:cut]:
        volume.apply(operation)
    return CrashState(cut, tuple(choice), volume.tree(choice), dict(volume.promises))


def choices(ways: Sequence[int], limit: int, dice: random.Random, new: int | None = None) -> Iterator[tuple[int, ...]]:
    """All combinations, or ``limit`` of them: all kept, none, those in order, one lost, one kept, then any.

    ``new``: only those in which this one is not lost, for the others were possible before.
    """
    least = [int(place == new) for place in range(len(ways))]
    if prod(way - low for way, low in zip(ways, least, strict=True)) <= limit:
        yield from product(*(range(low, way) for low, way in zip(least, ways, strict=True)))
        return
    kept, places = tuple(n - 1 for n in ways), range(len(ways))
    nothing = tuple(least)
    telling = [kept[:i] + nothing[i:] for i in places]
    telling += [(*nothing[:i], way, *nothing[i + 1 :]) for i in places for way in range(least[i], ways[i])]
    telling += [(*kept[:i], way, *kept[i + 1 :]) for i in places for way in range(least[i], ways[i])]
    dice.shuffle(telling)
    seen: set[tuple[int, ...]] = set()
    for choice in chain([kept, nothing], telling, iter(lambda: tuple(map(dice.randrange, least, ways)), None)):
        if choice not in seen:
            seen.add(choice)
            yield choice
        if len(seen) == limit:
            return


def _changes_nothing(operation: Operation | None, all_came: bool) -> bool:
    """Whether no state comes that has not come before; a sync only takes some away."""
    if isinstance(operation, Synced):
        return all_came
    return isinstance(operation, Opened) and not (operation.made or operation.emptied)
