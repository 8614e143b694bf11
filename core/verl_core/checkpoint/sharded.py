"""Checkpoints as folders that are whole or absent: staged, read back, published by one rename, verified on load.

``step_SSSSSS/`` below the storage's root holds a folder per component (see ``format``), the files that the run hands
over, ``schema_version.json``, ``checkpoint_summary.json`` with the hash of every file, and ``SUCCESS``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..committed import STAGING, SUCCESS, content_hash, move_aside, sweep_staging
from ..errors import DamagedCheckpoint, ObjectMissing, PluginError, RunMismatch, StorageError, StorageFull, VerlError
from ..protocols import FileStorage, Storage
from ..testing import crash
from ..types import BuildContext, CheckpointRef, CheckpointState, RunIdentity, Slice, TensorChunk
from . import schema
from .format import MANIFEST, FileEntry, Manifest, read_manifest, read_slice, write_component
from .summary import REMEDY, SUMMARY, Summary, check_files, encode_summary, folder_name, parse_summary, step_of

_log = logging.getLogger("verl.checkpoint")
SCHEMA = "schema_version.json"
_FILE = re.compile(r"(step_\d{6,})/(.+)")
_LEFTOVER = re.compile(r"step_\d{6,}_(\d+)")
_SLACK = 1 << 20  # for manifests, summary and folders, beyond tensors and files


@dataclass
class ShardedConfig:
    """``read_back``: hash every file again before the commit."""

    read_back: bool = True


def build_sharded(config: ShardedConfig, context: BuildContext, storage: Storage) -> ShardedCheckpointer:
    if not isinstance(storage, FileStorage):
        raise PluginError(
            "the checkpointer 'sharded' publishes by renaming folders, which this storage cannot do",
            where=storage.uri,
            remedy="set storage.checkpoint_uri to a path",
        )
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
    """A ``Checkpointer`` on a file system. One process saves at a time; any may list and read."""

    def __init__(
        self,
        storage: FileStorage,
        identity: RunIdentity,
        config: ShardedConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage, self._identity, self._clock = storage, identity, clock
        self._config = config or ShardedConfig()
        self._told: set[str] = set()

    def save(self, state: CheckpointState) -> CheckpointRef:
        """Stage, read back, publish. A good checkpoint of the step is left alone and its ref returned; a damaged one
        is moved aside first.

        Raises ``StorageFull`` before anything is written when there is no room, ``RunMismatch`` when the step is saved
        with another policy.
        """
        name = folder_name(state.step)
        found = self._existing(name, state)
        if found is not None:
            return found
        self._check_room(name, state)
        staged = f"{STAGING}/{name}_{state.attempt}"
        try:
            self._storage.delete(staged)  # of an earlier try of this attempt
            summary = self._stage(staged, name, state)
            if self._config.read_back:
                check_files(self._storage, staged, summary.files)
            crash.point("save.verified")
            self._storage.publish(staged, name)
        except VerlError:
            with suppress(StorageError):
                self._storage.delete(staged)
            raise
        return summary.ref

    def list(self) -> list[CheckpointRef]:
        """Newest first. A folder without ``SUCCESS`` or without one of its files is left out, and logged once.

        Of a damaged summary only step, name and hash are told; ``verify`` names the damage.
        """
        folders: dict[str, dict[str, int]] = {}
        for stat in self._storage.list():
            if match := _FILE.fullmatch(stat.path):
                folders.setdefault(match[1], {})[match[2]] = stat.size
        refs = (self._listed(name, sizes) for name, sizes in folders.items())
        return sorted((ref for ref in refs if ref), key=lambda ref: ref.step, reverse=True)

    def verify(self, ref: CheckpointRef) -> None:
        """Check that everything is there and as it was written. Raises ``DamagedCheckpoint`` that names the file."""
        summary = self._read_summary(ref.name)
        if summary.ref.summary_hash != ref.summary_hash:
            raise DamagedCheckpoint(
                "this is not the summary that was committed", where=self._where(ref.name, SUMMARY), remedy=REMEDY
            )
        check_files(self._storage, ref.name, summary.files)

    def open(self, ref: CheckpointRef) -> ShardedReader:
        """Verify, then read. Raises ``RunMismatch`` when the checkpoint has a schema that is not known here."""
        self.verify(ref)
        reader = ShardedReader(self._storage.child(ref.name), ref.step)
        schema.check(reader.file(SCHEMA), where=self._where(ref.name, SCHEMA))
        return reader

    def delete(self, ref: CheckpointRef) -> None:
        """Take the folder away by one rename, then remove it. Repeating it is harmless."""
        gone = f"{STAGING}/{ref.name}_{self._identity.attempt}_deleted"
        self._storage.delete(gone)
        try:
            self._storage.move(ref.name, gone)
        except ObjectMissing:
            return
        crash.point("delete.moved")
        self._storage.delete(gone)

    def condemn(self, ref: CheckpointRef) -> str:
        """Move a damaged checkpoint aside and return where it is."""
        return move_aside(self._storage, ref.name, f"{ref.name}.{self._identity.attempt}")

    def sweep(self) -> Sequence[str]:
        """Remove what dead attempts left in staging; return the names. For the one controller, at its start."""
        return sweep_staging(self._storage, _LEFTOVER, self._identity.attempt)

    # --- saving ------------------------------------------------------------------------------

    def _existing(self, name: str, state: CheckpointState) -> CheckpointRef | None:
        if not any(self._storage.list(name)):
            return None
        try:
            summary = self._read_summary(name)
            check_files(self._storage, name, summary.files)
        except DamagedCheckpoint as error:
            _log.warning("moved to %s: %s", move_aside(self._storage, name, f"{name}.{state.attempt}"), error)
            return None
        if summary.policy_digest != state.facts.get("policy_digest"):
            raise RunMismatch(
                "this step is saved already, with another policy",
                where=self._where(name),
                remedy="resume from it, or move it away",
            )
        return summary.ref

    def _check_room(self, name: str, state: CheckpointState) -> None:
        chunks = (chunk for ranks in state.tensors.values() for rank in ranks for chunk in rank)
        needed = sum(memoryview(chunk.data).nbytes for chunk in chunks) + sum(map(len, state.files.values())) + _SLACK
        free = self._storage.free_bytes()
        if free < needed:
            raise StorageFull(
                f"a checkpoint needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free",
                where=self._where(name),
                remedy="make room, or lower storage.keep_checkpoints",
            )

    def _stage(self, staged: str, name: str, state: CheckpointState) -> Summary:
        files: dict[str, FileEntry] = {}
        digests: dict[str, str] = {}
        for component, ranks in state.tensors.items():
            written = write_component(self._storage, f"{staged}/{component}", ranks, state.attempt)
            digests[component] = written.digest
            files |= {f"{component}/{file}": entry for file, entry in written.files.items()}
        for path, content in {**state.files, SCHEMA: schema.schema_version()}.items():
            files[path] = FileEntry(self._storage.write(f"{staged}/{path}", content), content_hash(content))
        data = encode_summary(state, self._identity.run_id, self._clock(), files, digests)
        self._storage.write(f"{staged}/{SUMMARY}", data)
        crash.point("save.summarized")
        self._storage.write(f"{staged}/{SUCCESS}", b"")
        return self._parsed(data, name)

    # --- reading -----------------------------------------------------------------------------

    def _listed(self, name: str, sizes: Mapping[str, int]) -> CheckpointRef | None:
        missing = {SUCCESS, SUMMARY} - sizes.keys()
        if not missing:
            try:
                data = self._storage.get(f"{name}/{SUMMARY}")
            except ObjectMissing:  # deleted meanwhile
                return None
            try:
                summary = self._parsed(data, name)
            except DamagedCheckpoint:
                size = sum(sizes.values())
                return CheckpointRef(step_of(name), self._identity.branch, -1, name, content_hash(data), size)
            missing = summary.files.keys() - sizes.keys()
            if not missing:
                return summary.ref
        if name not in self._told:
            self._told.add(name)
            _log.warning("%s is not a committed checkpoint: without %s", self._where(name), ", ".join(sorted(missing)))
        return None

    def _read_summary(self, name: str) -> Summary:
        try:
            if self._storage.stat(f"{name}/{SUCCESS}") is None:
                raise DamagedCheckpoint("it was never committed", where=self._where(name, SUCCESS), remedy=REMEDY)
            return self._parsed(self._storage.get(f"{name}/{SUMMARY}"), name)
        except ObjectMissing as error:
            raise DamagedCheckpoint("the file is missing", where=self._where(name, SUMMARY), remedy=REMEDY) from error

    def _parsed(self, data: bytes, name: str) -> Summary:
        return parse_summary(data, name, self._identity.run_id, self._where(name, SUMMARY))

    def _where(self, folder: str, path: str = "") -> str:
        return f"{self._storage.uri}/{folder}" + (f"/{path}" if path else "")
