"""``checkpoint_summary.json``: what a checkpoint is and the hash of its every file; and whether the files agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from blake3 import blake3

from ..committed import content_hash, seal, unseal
from ..errors import DamagedCheckpoint, ObjectMissing, RunMismatch
from ..protocols import Storage
from ..types import CheckpointRef, CheckpointState
from .format import FORMAT, FileEntry

SUMMARY, RNG = "checkpoint_summary.json", "rng_state.msgpack"
REMEDY = "resume from an older step; this one is saved anew when it comes again"
BLOCK = 16 << 20  # bytes hashed or copied at a time


@dataclass(frozen=True, slots=True)
class Summary:
    """What the checkpointer needs to know of it."""

    ref: CheckpointRef
    files: Mapping[str, FileEntry]  # path below the step's folder → what it must be
    policy_digest: str | None


def folder_name(step: int) -> str:
    return f"step_{step:06d}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step_"))


def encode_summary(
    state: CheckpointState,
    run_id: str,
    timestamp: float,
    files: Mapping[str, FileEntry],
    digests: Mapping[str, str],
) -> bytes:
    """Sealed JSON: the state's facts, and beside them what every summary has. ``digests`` is by component.

    ``model_hash`` is the digest of ``actor`` (see ``format.write_component``), ``<component>_hash`` that of another.
    """
    own = {
        "format": FORMAT,
        "run_id": run_id,
        "branch": state.branch,
        "attempt": state.attempt,
        "step": state.step,
        "timestamp": timestamp,
        "rng_state_hash": files[RNG].hash if RNG in files else None,
        "files": {path: asdict(entry) for path, entry in files.items()},
        **{"model_hash" if name == "actor" else f"{name}_hash": digest for name, digest in digests.items()},
    }
    if clash := {*own, "hash"} & state.facts.keys():
        raise ValueError(f"the summary has these facts already: {sorted(clash)}")
    return seal({**state.facts, **own})


def parse_summary(data: bytes, name: str, run_id: str, where: str) -> Summary:
    """Raises ``DamagedCheckpoint`` when a byte is wrong or the step is another, ``RunMismatch`` for another run."""
    try:
        fields = unseal(data)
    except ValueError as error:
        raise DamagedCheckpoint(f"the file is damaged: {error}", where=where, remedy=REMEDY) from error
    if fields.get("format") != FORMAT:
        raise RunMismatch(f"format {fields.get('format')} is not known here", where=where)
    if fields["run_id"] != run_id:
        raise RunMismatch(f"this checkpoint belongs to run {fields['run_id']}", where=where)
    if fields["step"] != step_of(name):
        raise DamagedCheckpoint(f"this is the summary of step {fields['step']}", where=where, remedy=REMEDY)
    files = {path: FileEntry(entry["size"], entry["hash"]) for path, entry in fields["files"].items()}
    size = len(data) + sum(entry.size for entry in files.values())
    ref = CheckpointRef(fields["step"], fields["branch"], fields["attempt"], name, content_hash(data), size)
    return Summary(ref, files, fields.get("policy_digest"))


def check_files(storage: Storage, folder: str, files: Mapping[str, FileEntry]) -> None:
    """Raises ``DamagedCheckpoint`` that names the first file that is missing or not as it was written."""
    for path, entry in files.items():
        stat = storage.stat(f"{folder}/{path}")
        if stat is None:
            raise _damaged("the file is missing", storage, folder, path)
        if stat.size != entry.size:
            raise _damaged(f"the file has {stat.size} bytes instead of {entry.size}", storage, folder, path)
    for path, entry in files.items():
        found = blake3()
        try:
            for start in range(0, entry.size, BLOCK):
                found.update(storage.get(f"{folder}/{path}", start, start + BLOCK))
        except ObjectMissing:  # swept meanwhile
            raise _damaged("the file is missing", storage, folder, path) from None
        if f"blake3:{found.hexdigest()}" != entry.hash:
            raise _damaged("the file differs from its hash", storage, folder, path)


def _damaged(what: str, storage: Storage, folder: str, path: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(what, where=f"{storage.uri}/{folder}/{path}", remedy=REMEDY)
