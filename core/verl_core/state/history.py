"""What the state log says, folded into one record: the only memory that a restart needs besides committed data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from ..checkpoint.when import Measured
from ..types import BatchKey, BatchRef, CheckpointRef, PlatformKey, RewardSource
from .journal import Entry


@dataclass(slots=True)
class StepRecord:
    """A finished step: last wins, since a step that is run again must end the same."""

    step: int
    policy_digest: str
    reward_mean: float | None  # None: skipped
    keys: tuple[BatchKey, ...]
    metrics: Mapping[str, float]
    seconds: float
    attempt: int
    time: float


@dataclass(frozen=True, slots=True)
class Swap:
    """A reward that took another's place: it scores what later attempts make."""

    old: RewardSource
    new: RewardSource
    from_step: int  # the first with batches that were not committed
    scale: float  # of the new outputs
    shift: float
    samples: int  # that these were fitted on
    attempt: int  # the last before it


@dataclass(slots=True)
class History:
    """Fold of the entries in order. Later entries win; counts are over the whole life of the run."""

    run_id: str = ""
    state: str = "INIT"
    attempt: int = 0
    branch: int = 0
    steps: dict[int, StepRecord] = field(default_factory=dict)
    batches: dict[BatchKey, BatchRef] = field(default_factory=dict)
    unkept: set[BatchKey] = field(default_factory=set)  # never committed (fault tolerance off), or condemned
    checkpoints: dict[int, CheckpointRef] = field(default_factory=dict)
    condemned: list[str] = field(default_factory=list)
    dispatched: dict[BatchKey, int] = field(default_factory=dict)  # how often a batch was sent to be generated
    evals: dict[int, float] = field(default_factory=dict)
    faults: list[tuple[str, str]] = field(default_factory=list)  # (kind, scope) since the last confirmation
    fault_count: int = 0
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=5))  # newest faults and decisions, in words
    retry_times: list[float] = field(default_factory=list)  # wall time of each retry and rebuild
    rebuilt: list[str] = field(default_factory=list)  # scopes of rebuilds since the last confirmation
    prepared: dict[int, str] = field(default_factory=dict)  # step → digest of the state that was loaded
    platforms: dict[int, PlatformKey] = field(default_factory=dict)  # attempt → where it ran
    mode: str = ""
    started: float = 0.0
    total_steps: int | None = None
    reward: RewardSource = field(default_factory=RewardSource)  # what scores; empty before the first start
    swaps: list[Swap] = field(default_factory=list)  # of the reward, in order
    first_made: dict[BatchKey, int] = field(default_factory=dict)  # attempt that committed the batch for the first time
    confirmations: list[tuple[str, str]] = field(default_factory=list)

    @property
    def committed(self) -> dict[BatchKey, BatchRef]:
        """The batches that storage must have."""
        return {key: ref for key, ref in self.batches.items() if key not in self.unkept}

    @property
    def step(self) -> int:
        """The newest finished step of the schedule."""
        return max(self.steps, default=0)

    @property
    def policy_digest(self) -> str:
        return self.steps[self.step].policy_digest if self.steps else ""

    def digest(self, step: int) -> str:
        """Policy digest after ``step``, "" where the log does not say."""
        return self.steps[step].policy_digest if step in self.steps else self.prepared.get(step, "")

    def current(self, ref: CheckpointRef) -> bool:
        """Whether a checkpoint that the log need not know is of the run as it went on: no later attempt made any of its
        steps again, and it knows the step."""
        made = [record.attempt for step, record in self.steps.items() if step <= ref.step]
        return all(attempt <= ref.attempt for attempt in made) and ref.step <= self.step

    def swaps_since(self, key: BatchKey) -> int:
        """How many swaps of the reward are newer than a batch; 0 for one that was never made."""
        attempt = self.first_made.get(key, self.attempt + 1)
        return sum(swap.attempt >= attempt for swap in self.swaps)

    @property
    def scale(self) -> tuple[float, float]:
        """Scale and shift of the reward in force."""
        return (self.swaps[-1].scale, self.swaps[-1].shift) if self.swaps else (1.0, 0.0)

    def same_platform(self, one: int, other: int) -> bool:
        """Whether two attempts must produce equal bits."""
        return self.platforms.get(one) == self.platforms.get(other)

    @property
    def rewards(self) -> list[float | None]:
        return [self.steps[s].reward_mean if s in self.steps else None for s in range(1, self.step + 1)]

    def measured(self, step: int) -> Iterator[Measured]:
        """What the steps up to ``step`` reported, in order."""
        for number in sorted(s for s in self.steps if s <= step):
            metrics = self.steps[number].metrics
            yield number, metrics.get("loss"), metrics.get("kl")

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        self.state, self.attempt, self.branch = entry.state, entry.attempt, entry.branch
        self.run_id = entry.run_id
        self.started = self.started or entry.time
        reader = _READERS.get(entry.event)
        if reader is not None:
            reader(self, entry)


def fold(entries: Iterable[Entry]) -> History:
    """The history that a state log tells."""
    history = History()
    for entry in entries:
        history.add(entry)
    return history


def _opened(h: History, e: Entry) -> None:
    h.total_steps = cast(int, e.payload["total_steps"])
    if "reward" in e.payload:  # else it was written before rewards were on record
        h.reward = RewardSource(**cast(Mapping[str, str], e.payload["reward"]))


def _prepared(h: History, e: Entry) -> None:
    platform = cast(Mapping[str, object], e.payload["platform"])
    h.platforms[e.attempt] = PlatformKey(**platform)  # type: ignore[arg-type]
    h.mode = str(e.payload["mode"])
    h.prepared[cast(int, e.payload["step"])] = str(e.payload["policy_digest"])


def _dispatched(h: History, e: Entry) -> None:
    for key in map(batch_key, cast(list[Mapping[str, int]], e.payload["generate"])):
        h.dispatched[key] = h.dispatched.get(key, 0) + 1


def _complete(h: History, e: Entry) -> None:
    ref = batch_ref(cast(Mapping[str, object], e.payload["ref"]))
    h.batches[ref.key] = ref
    h.first_made.setdefault(ref.key, ref.attempt)
    if e.payload["durable"]:
        h.unkept.discard(ref.key)
    else:
        h.unkept.add(ref.key)


def _trained(h: History, e: Entry) -> None:
    result = cast(Mapping[str, object], e.payload["result"])
    step = cast(int, result["step"])
    h.steps[step] = StepRecord(
        step,
        cast(str, result["policy_digest"]),
        cast(float, result["reward_mean"]),
        tuple(map(batch_key, cast(list[Mapping[str, int]], e.payload["keys"]))),
        {k: v for k, v in cast(Mapping[str, object], result["metrics"]).items() if isinstance(v, float | int)},
        cast(float, result["seconds"]),
        e.attempt,
        e.time,
    )


def _skipped(h: History, e: Entry) -> None:
    step = cast(int, e.payload["step"])
    keys = tuple(map(batch_key, cast(list[Mapping[str, int]], e.payload["keys"])))
    digest = h.steps[step - 1].policy_digest if step - 1 in h.steps else ""
    h.steps[step] = StepRecord(step, digest, None, keys, {}, 0.0, e.attempt, e.time)


def _evaluated(h: History, e: Entry) -> None:
    if e.payload["reward_mean"] is not None:
        h.evals[cast(int, e.payload["step"])] = cast(float, e.payload["reward_mean"])


def _saved(h: History, e: Entry) -> None:
    ref = CheckpointRef(**cast(Mapping[str, object], e.payload["ref"]))  # type: ignore[arg-type]
    h.checkpoints[ref.step] = ref


def _deleted(h: History, e: Entry) -> None:
    for step in cast(list[int], e.payload["steps"]):
        h.checkpoints.pop(step, None)


def _condemned(h: History, e: Entry) -> None:
    h.condemned.append(str(e.payload["name"]))
    if e.payload["kind"] == "checkpoint":
        h.checkpoints.pop(cast(int, e.payload["step"]), None)
    else:  # its record stays: made again, it must be the same
        h.unkept.add(batch_key(cast(Mapping[str, int], e.payload["key"])))


def _faulted(h: History, e: Entry) -> None:
    fault = cast(Mapping[str, object], e.payload["fault"])
    h.faults.append((str(fault["kind"]), str(fault["scope"])))
    h.recent.append(f"step {fault['step']}: {fault['kind']} of {fault['scope']}: {fault['evidence']}")
    h.fault_count += 1


def _decided(h: History, e: Entry) -> None:
    action = cast(Mapping[str, object], e.payload["decision"])["action"]
    if action in ("retry", "reschedule", "rebuild"):
        h.retry_times.append(e.time)
    if action == "rebuild":
        h.rebuilt.append(str(cast(Mapping[str, object], e.payload["fault"])["scope"]))


def _confirmed(h: History, e: Entry) -> None:
    h.confirmations.append((str(e.payload["who"]), str(e.payload["reason"])))
    h.faults.clear()
    h.retry_times.clear()
    h.rebuilt.clear()
    h.recent.clear()


def _reward_updated(h: History, e: Entry) -> None:
    fields = {name: e.payload[name] for name in ("from_step", "scale", "shift", "samples")}
    old, new = (RewardSource(**cast(Mapping[str, str], e.payload[name])) for name in ("old", "new"))
    h.swaps.append(Swap(old, new, attempt=e.attempt, **fields))  # type: ignore[arg-type]
    h.reward = new


_READERS = {
    "opened": _opened,
    "prepared": _prepared,
    "rollout_dispatched": _dispatched,
    "rollout_complete": _complete,
    "train_step_done": _trained,
    "train_step_skipped": _skipped,
    "eval_done": _evaluated,
    "checkpoint_committed": _saved,
    "checkpoints_deleted": _deleted,
    "condemned": _condemned,
    "fault": _faulted,
    "decision": _decided,
    "confirmed": _confirmed,
    "reward_updated": _reward_updated,
}


def batch_key(value: Mapping[str, int]) -> BatchKey:
    return BatchKey(value["epoch"], value["batch"])


def batch_ref(value: Mapping[str, object]) -> BatchRef:
    fields = dict(value)
    fields["key"] = batch_key(cast(Mapping[str, int], fields["key"]))
    fields["prompt_rows"] = tuple(cast(list[int], fields["prompt_rows"]))
    return BatchRef(**fields)  # type: ignore[arg-type]
