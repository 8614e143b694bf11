"""Checkpoints that are whole or absent: written aside, read back, committed at once, verified on load.

``step_SSSSSS/`` below the storage's root holds a folder per component (see ``format``), the files that the run hands
over, ``schema_version.json``, ``checkpoint_summary.json`` with the hash of every file, and ``SUCCESS``. How it gets
there is the shelf's: by one rename on a file system (``shelf``), by one object that picks on others (``objects``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..committed import SUCCESS, content_hash, write
from ..errors import DamagedCheckpoint, ObjectMissing, RunMismatch, StorageConflict, StorageFull, VerlError
from ..protocols import CheckpointFiles, CheckpointReader, FileStorage, Portable, Storage
from ..testing import crash
from ..types import BuildContext, CheckpointRef, CheckpointState, RunIdentity, Slice, TensorChunk
from . import schema
from .format import MANIFEST, FileEntry, Manifest, read_manifest, read_slice, write_component
from .objects import ObjectShelf
from .shelf import Contents, FolderShelf, Shelf
from .summary import BLOCK, REMEDY, SUMMARY, Summary, check_files, encode_summary, folder_name, parse_summary, step_of

_log = logging.getLogger("verl.checkpoint")
SCHEMA = "schema_version.json"
_SLACK = 1 << 20  # for manifests, summary and folders, beyond tensors and files


@dataclass
class ShardedConfig:
    """``read_back``: hash every file again before the commit."""

    read_back: bool = True


def build_sharded(config: ShardedConfig, context: BuildContext, storage: Storage) -> ShardedCheckpointer:
    return ShardedCheckpointer(storage, RunIdentity(context.run_id, context.branch, context.attempt), config)


class ShardedReader:
    """A ``CheckpointReader`` of a checkpoint whose hashes have been checked."""

    def __init__(self, storage: Storage, step: int) -> None:
        self.step = step
        self._storage = storage
        self._manifests: dict[str, Manifest] = {}

    def read(self, component: str, piece: Slice) -> TensorChunk:
        """Any piece of a tensor. Raises ``DamagedCheckpoint`` when the checkpoint does not hold it."""
        if component not in self._manifests:
            self._manifests[component] = read_manifest(self.file(f"{component}/{MANIFEST}"))
        return read_slice(self._storage, component, self._manifests[component], piece)

    def file(self, path: str) -> bytes:
        """Raises ``ObjectMissing``."""
        return self._storage.get(path)


class ShardedCheckpointer:
    """A ``Checkpointer`` on any storage. One process saves at a time; any may list and read."""

    def __init__(
        self,
        storage: Storage,
        identity: RunIdentity,
        config: ShardedConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage, self._identity, self._clock = storage, identity, clock
        self._shelf: Shelf = (
            FolderShelf(storage, identity) if isinstance(storage, FileStorage) else ObjectShelf(storage, identity)
        )
        self._config = config or ShardedConfig()
        self._told: set[str] = set()

    def portable(self) -> bool:
        return isinstance(self._storage, Portable) and self._storage.portable()

    def save(self, state: CheckpointState) -> CheckpointRef:
        """Write, read back, commit. A good checkpoint of the step is left alone and its ref returned; a damaged one
        is condemned first.

        Raises ``StorageFull`` before anything is written when there is no room, ``RunMismatch`` when the step is saved
        with another policy.
        """
        name = folder_name(state.step)
        found = self._existing(name, state.attempt, state.facts.get("policy_digest"))
        if found is not None:
            return found
        self._check_room(name, _size_of(state))
        folder = self._shelf.begin(name, state.attempt)
        try:
            summary = self._write(folder, name, state)
            if self._config.read_back:
                self._read_back(folder, summary)
            crash.point("save.verified")
        except VerlError:
            self._shelf.abandon(folder)
            raise
        if self._shelf.commit(name, folder):
            return summary.ref
        self._shelf.abandon(folder)
        return self.save(state)  # somebody was quicker: look at what is there now

    def list(self) -> list[CheckpointRef]:
        """Newest first. A folder without ``SUCCESS`` or without one of its files is left out, and logged once.

        Of a damaged summary only step, name and hash are told; ``verify`` names the damage.
        """
        refs = (self._listed(name, contents) for name, contents in self._shelf.contents().items())
        return sorted((ref for ref in refs if ref), key=lambda ref: ref.step, reverse=True)

    def verify(self, ref: CheckpointRef) -> None:
        """Check that everything is there and as it was written. Raises ``DamagedCheckpoint`` that names the file."""
        self._verified(ref)

    def open(self, ref: CheckpointRef) -> CheckpointReader:
        """Verify, then read; an older schema through its migrations. Raises ``RunMismatch`` for an unknown one."""
        folder = self._verified(ref)
        reader = ShardedReader(self._storage.child(folder), ref.step)
        return schema.upgraded(reader, self._where(folder, SCHEMA))

    def contents(self, ref: CheckpointRef) -> CheckpointFiles:
        """The summary, and each other file in blocks. Raises ``DamagedCheckpoint``: all is verified first."""
        folder = self._verified(ref)
        data = self._storage.get(f"{folder}/{SUMMARY}")
        files = self._parsed(data, ref.name, folder).files
        return data, ((path, self._blocks(f"{folder}/{path}", entry.size)) for path, entry in files.items())

    def adopt(self, ref: CheckpointRef, files: CheckpointFiles) -> None:
        """Write, read back, commit, like ``save``."""
        data, others = files
        summary = self._parsed(data, ref.name, ref.name)
        while self._existing(ref.name, self._identity.attempt, summary.policy_digest) is None:
            self._check_room(ref.name, ref.bytes)
            folder = self._shelf.begin(ref.name, self._identity.attempt)
            try:
                for path, blocks in others:
                    write(self._storage, f"{folder}/{path}", blocks)
                    crash.point("copy.written")
                write(self._storage, f"{folder}/{SUMMARY}", data)
                self._read_back(folder, summary)
                crash.point("copy.verified")
            except VerlError:
                self._shelf.abandon(folder)
                raise
            if self._shelf.commit(ref.name, folder):
                return
            self._shelf.abandon(folder)

    def delete(self, ref: CheckpointRef) -> None:
        """Remove; from its first change on the checkpoint is not listed. Repeating it is harmless."""
        self._shelf.delete(ref)

    def condemn(self, ref: CheckpointRef) -> str:
        """Put a damaged checkpoint aside, where it is kept and not listed, and return where it is."""
        return self._shelf.condemn(ref.name, self._identity.attempt)

    def sweep(self) -> Sequence[str]:
        """Remove what dead attempts left half-written; return the names. For the one controller, at its start."""
        return self._shelf.sweep()

    # --- saving ------------------------------------------------------------------------------

    def _existing(self, name: str, attempt: int, policy_digest: object) -> CheckpointRef | None:
        if not self._shelf.taken(name):
            return None
        try:
            folder, summary = self._read_summary(name)
            check_files(self._storage, folder, summary.files)
        except DamagedCheckpoint as error:
            _log.warning("moved to %s: %s", self._shelf.condemn(name, attempt), error)
            return None
        if summary.policy_digest != policy_digest:
            raise RunMismatch(
                "this step is saved already, with another policy",
                where=self._where(name),
                remedy="resume from it, or move it away",
            )
        self._shelf.settle()
        return summary.ref

    def _check_room(self, name: str, size: int) -> None:
        if not isinstance(self._storage, FileStorage):
            return
        needed, free = size + _SLACK, self._storage.free_bytes()
        if free < needed:
            raise StorageFull(
                f"a checkpoint needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free",
                where=self._where(name),
                remedy="make room, or lower storage.keep_checkpoints",
            )

    def _write(self, folder: str, name: str, state: CheckpointState) -> Summary:
        files: dict[str, FileEntry] = {}
        digests: dict[str, str] = {}
        for component, ranks in state.tensors.items():
            written = write_component(self._storage, f"{folder}/{component}", ranks, state.attempt)
            digests[component] = written.digest
            files |= {f"{component}/{file}": entry for file, entry in written.files.items()}
        for path, content in {**state.files, SCHEMA: schema.schema_version()}.items():
            files[path] = FileEntry(write(self._storage, f"{folder}/{path}", content), content_hash(content))
        data = encode_summary(state, self._identity.run_id, self._clock(), files, digests)
        write(self._storage, f"{folder}/{SUMMARY}", data)
        crash.point("save.summarized")
        return self._parsed(data, name, folder)

    def _read_back(self, folder: str, summary: Summary) -> None:
        try:
            check_files(self._storage, folder, summary.files)
        except DamagedCheckpoint as error:
            if all(self._storage.stat(f"{folder}/{path}") for path in summary.files):
                raise
            # by a controller that took over: the state log will say so to the next try
            raise StorageConflict("what was just written is swept", where=self._where(folder)) from error

    # --- reading -----------------------------------------------------------------------------

    def _blocks(self, path: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, BLOCK):
            yield self._storage.get(path, start, min(start + BLOCK, size))

    def _verified(self, ref: CheckpointRef) -> str:
        """The folder of a checkpoint that is as it was written."""
        folder, summary = self._read_summary(ref.name)
        if summary.ref.summary_hash != ref.summary_hash:
            raise DamagedCheckpoint(
                "this is not the summary that was committed", where=self._where(folder, SUMMARY), remedy=REMEDY
            )
        check_files(self._storage, folder, summary.files)
        return folder

    def _listed(self, name: str, found: Contents) -> CheckpointRef | None:
        unreadable = CheckpointRef(step_of(name), self._identity.branch, -1, name, "", sum(found.sizes.values()))
        if found.folder is None:
            return unreadable
        missing = {SUCCESS, SUMMARY} - found.sizes.keys()
        if not missing:
            try:
                data = self._storage.get(f"{found.folder}/{SUMMARY}")
            except ObjectMissing:  # deleted meanwhile
                return None
            try:
                summary = self._parsed(data, name, found.folder)
            except DamagedCheckpoint:
                return replace(unreadable, summary_hash=content_hash(data))
            missing = summary.files.keys() - found.sizes.keys()
            if not missing:
                return summary.ref
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s is not a committed checkpoint: without %s", self._where(name), ", ".join(sorted(missing)))
        return None

    def _read_summary(self, name: str) -> tuple[str, Summary]:
        """The folder that counts, and what its summary says."""
        folder = self._shelf.place(name)
        if folder is None:
            raise DamagedCheckpoint("it was never committed", where=self._where(name, SUCCESS), remedy=REMEDY)
        try:
            return folder, self._parsed(self._storage.get(f"{folder}/{SUMMARY}"), name, folder)
        except ObjectMissing as error:
            where = self._where(folder, SUMMARY)
            raise DamagedCheckpoint("the file is missing", where=where, remedy=REMEDY) from error

    def _parsed(self, data: bytes, name: str, folder: str) -> Summary:
        return parse_summary(data, name, self._identity.run_id, self._where(folder, SUMMARY))

    def _where(self, folder: str, path: str = "") -> str:
        return f"{self._storage.uri}/{folder}" + (f"/{path}" if path else "")


def _size_of(state: CheckpointState) -> int:
    """Bytes of tensors and files."""
    chunks = (chunk for ranks in state.tensors.values() for rank in ranks for chunk in rank)
    return sum(memoryview(chunk.data).nbytes for chunk in chunks) + sum(map(len, state.files.values()))
