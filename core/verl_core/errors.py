"""One exception tree. Every error says what is wrong, where, and what to do next.

``exit_code`` is what the command line leaves with:

====  =====================================================================
code  meaning
====  =====================================================================
1     a fault of ours or of the machine that nothing handled
2     bad input: config, plugin, path, data, model folder
3     the run is busy: another controller holds it
4     damage: a committed object is not what its hash says
5     a person must decide (SAFE_MODE)
130   interrupted by Ctrl-C; the run can be resumed
====  =====================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

from .masking import masked


class VerlError(Exception):
    """Root of the tree: ``what`` happened, ``where``, and the ``remedy``."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what, self.where, self.remedy = masked(what), masked(where), masked(remedy)
        super().__init__(self.what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}" + (f" — {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[object, ...]:  # survives the way between processes
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(cls: type[VerlError], what: str, where: str, remedy: str) -> VerlError:
    return cls(what, where=where, remedy=remedy)


# --- bad input (exit code 2) -----------------------------------------------------------------


class InputError(VerlError):
    """Something that the user gave is wrong; nothing was written."""

    exit_code = 2


class ConfigError(InputError):
    """A key or a value of the configuration."""


class PluginError(InputError):
    """A plugin is unknown, broken, doubled or missing."""


class DataError(InputError):
    """A data file is missing, empty or malformed (the line is named)."""


class ModelError(InputError):
    """A model folder is missing, or asks for remote code or a pickle."""


class PreflightError(InputError):
    """All findings of the checks before the start, reported together; faults of the machine alone are no bad input."""

    def __init__(self, findings: Sequence[VerlError]) -> None:
        self.findings = tuple(findings)
        if findings and not any(isinstance(finding, InputError) for finding in findings):
            self.exit_code = VerlError.exit_code
        super().__init__("\n".join(str(f) for f in findings))

    def __reduce__(self) -> tuple[object, ...]:
        return (PreflightError, (self.findings,))


# --- storage ---------------------------------------------------------------------------------


class StorageError(VerlError):
    """A storage call failed; the subclasses say how."""


class ObjectMissing(StorageError):
    """No object under this name."""


class ObjectExists(StorageError):
    """Create-if-absent or publish met a name that is taken."""


class StoreMissing(StorageError):
    """The bucket, or the folder that a mount should be at, is not there."""


class StorageDenied(StorageError):
    """Credentials or permissions."""


class StorageTimeout(StorageError):
    """The deadline of a call passed; the call may still land later."""


class StorageUnavailable(StorageError):
    """The store cannot be reached, or fails by itself; the call may have landed."""


class StorageThrottled(StorageError):
    """The store asks for fewer calls."""


class StorageConflict(StorageError):
    """Another call on the same name was under way; which of the two landed is not known."""


class StorageFull(StorageError):
    """No space left."""


class StorageReadOnly(StorageError):
    """The mount or bucket cannot be written."""


# --- the run ---------------------------------------------------------------------------------


class RunBusy(VerlError):
    """Another controller holds this run."""

    exit_code = 3


class DamagedError(VerlError):
    """A committed object differs from its hash, or a part of it is missing."""

    exit_code = 4


class DamagedBatch(DamagedError):
    """A committed rollout batch."""


class DamagedCheckpoint(DamagedError):
    """A committed checkpoint; the file is named."""


class JournalError(DamagedError):
    """The state log is unreadable, or its hash chain is broken before the last line."""


class RunMismatch(InputError):
    """What was found belongs to another run, schema, data set or config."""


class SafeModeError(VerlError):
    """The run waits for ``verl-core confirm``."""

    exit_code = 5


class Stopped(VerlError):
    """SIGTERM: the state was saved, the run can go on."""

    exit_code = 75


class Interrupted(VerlError):
    """Ctrl-C: the state was saved, the run can go on."""

    exit_code = 130


# --- workers ---------------------------------------------------------------------------------


class WorkerError(VerlError):
    """A worker answered with an error."""


class WorkerLost(WorkerError):
    """A worker is gone."""


class OutOfMemory(WorkerError):
    """A device or the host ran out of memory."""
