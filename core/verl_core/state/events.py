"""Named events, the only causes of transitions, and the commands that a transition asks the loop to carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..types import BatchKey, BatchRef, Decision, Fault, PlatformKey, RewardSource, StepResult

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    name: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Opened(Event):
    """The attempt holds the run: lock taken, state log open."""

    name: ClassVar[str] = "opened"
    pid: int
    host: str
    code_version: str
    config_hash: str
    data_fingerprint: str
    total_steps: int
    reward: RewardSource = field(default_factory=RewardSource)


@dataclass(frozen=True, slots=True)
class Prepared(Event):
    """Workers are up and hold the state of ``step``."""

    name: ClassVar[str] = "prepared"
    step: int
    policy_digest: str
    platform: PlatformKey
    mode: str  # exact | close


@dataclass(frozen=True, slots=True)
class RolloutDispatched(Event):
    name: ClassVar[str] = "rollout_dispatched"
    step: int
    generate: tuple[BatchKey, ...]  # those that were not committed yet


@dataclass(frozen=True, slots=True)
class RolloutComplete(Event):
    """A batch is there. ``reused``: found committed, nothing was generated. ``durable``: committed to storage, which is
    not so with fault tolerance off."""

    name: ClassVar[str] = "rollout_complete"
    ref: BatchRef
    reused: bool
    durable: bool = True


@dataclass(frozen=True, slots=True)
class DataAvailable(Event):
    """All batches of the step are committed."""

    name: ClassVar[str] = "data_available"
    step: int


@dataclass(frozen=True, slots=True)
class RetryRollout(Event):
    """Only the missing batches are rescheduled."""

    name: ClassVar[str] = "retry_rollout"
    step: int
    keys: tuple[BatchKey, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class TrainStepDone(Event):
    name: ClassVar[str] = "train_step_done"
    result: StepResult
    keys: tuple[BatchKey, ...]  # consumed, in order
    replayed: bool  # the step had been done before, by an earlier attempt


@dataclass(frozen=True, slots=True)
class RetryTrain(Event):
    name: ClassVar[str] = "retry_train"
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rebuild(Event):
    """The training group is started anew from the newest good state; the steps since then are run again."""

    name: ClassVar[str] = "rebuild"
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TrainStepSkipped(Event):
    """A step is given up on purpose, with its prompts; the policy version counts on."""

    name: ClassVar[str] = "train_step_skipped"
    step: int
    keys: tuple[BatchKey, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EvalDone(Event):
    name: ClassVar[str] = "eval_done"
    step: int
    reward_mean: float | None  # None: no evaluation was due


@dataclass(frozen=True, slots=True)
class FaultSeen(Event):
    name: ClassVar[str] = "fault"
    fault: Fault


@dataclass(frozen=True, slots=True)
class SaveAsked(Event):
    """Somebody wants a checkpoint of the newest finished step, at once."""

    name: ClassVar[str] = "save"
    step: int


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """Somebody wants the run to end here, with a save; it can go on later."""

    name: ClassVar[str] = "stop"
    reason: str


@dataclass(frozen=True, slots=True)
class TimedOut(Event):
    """The state's deadline passed."""

    name: ClassVar[str] = "timeout"


@dataclass(frozen=True, slots=True)
class Decided(Event):
    """A policy's choice; durable before it is carried out."""

    name: ClassVar[str] = "decision"
    fault: Fault
    decision: Decision


@dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """A person ended SAFE_MODE."""

    name: ClassVar[str] = "confirmed"
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class RewardUpdated(Event):
    """A person gave the run another reward: it scores what later attempts make."""

    name: ClassVar[str] = "reward_updated"
    who: str
    old: RewardSource
    new: RewardSource
    from_step: int  # the first with batches that were not committed
    scale: float  # of the new outputs, fitted on the old ones
    shift: float
    samples: int  # that they were fitted on; 0: not fitted


# --- commands --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    pass


@dataclass(frozen=True, slots=True)
class Prepare(Command):
    """Bring up the workers and load the newest good state. ``again``: only the training group is started anew."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class Dispatch(Command):
    """Give the workers the policy before ``step``, and the batches to generate; committed ones are reported at once.

    ``again``: whoever holds these batches is replaced first.
    """

    step: int
    keys: tuple[BatchKey, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Train(Command):
    step: int


@dataclass(frozen=True, slots=True)
class Evaluate(Command):
    step: int
    again: bool = False  # whoever holds it is replaced first


@dataclass(frozen=True, slots=True)
class Save(Command):
    step: int


@dataclass(frozen=True, slots=True)
class Decide(Command):
    fault: Fault


@dataclass(frozen=True, slots=True)
class Emit(Command):
    """Feed an event that follows from the transition itself."""

    event: Event
