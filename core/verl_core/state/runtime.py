"""Runtime state: what a run knows beside its weights, as ``runtime_state.msgpack.zst``.

Nothing in it decides what comes next (the schedule does): it carries the windows that metrics and alerts look back on,
and says where the run stood. Each checkpoint has that of its step; the run's folder has a newer one, for people and
tools that look at a run from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import msgpack
import zstandard

from ..errors import DamagedError
from ..protocols import Storage
from ..writes import Writes
from .history import History
from .schedule import Schedule

FILE = "runtime_state.msgpack.zst"
FORMAT = 1
WINDOW = 100  # steps


@dataclass(frozen=True, slots=True)
class RewardSnapshot:
    """A reward model in little: which one it is, and its head, without its body."""

    name: str
    path: str
    digest: str
    scale: float
    shift: float
    head: bytes  # the tensors behind the body, as a safetensors file; empty when they are large
    tokenizer_config: bytes  # tokenizer_config.json


@dataclass(frozen=True, slots=True)
class RuntimeState:
    step: int
    epoch: int
    sampler_offset: int  # prompts consumed by training
    kl_window: tuple[float, ...]  # of the newest steps, oldest first
    reward_window: tuple[float, ...]
    reward: RewardSnapshot | None  # None: it is no model

    def encode(self) -> bytes:
        return zstandard.ZstdCompressor(level=3).compress(pack({"format": FORMAT, **asdict(self)}))


def pack(value: object) -> bytes:
    packer = msgpack.Packer(autoreset=False)
    packer.pack(value)
    return bytes(packer.bytes())


def runtime_state(
    history: History, schedule: Schedule, step: int, reward: RewardSnapshot | None = None
) -> RuntimeState:
    """The runtime state after ``step``, from the state log and the reward in force."""
    done = [history.steps[s] for s in range(max(1, step - WINDOW + 1), step + 1) if s in history.steps]
    kept = [record for record in done if record.reward_mean is not None]
    return RuntimeState(
        step,
        (step - 1) // schedule.steps_per_epoch if step else 0,
        schedule.prompts_through(step),
        tuple(record.metrics["kl"] for record in kept),
        tuple(record.reward_mean or 0.0 for record in kept),
        reward,
    )


def decode(data: bytes, where: str) -> RuntimeState:
    """Raises DamagedError."""
    try:
        fields = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        kl, rewards = tuple(fields.pop("kl_window")), tuple(fields.pop("reward_window"))
        reward = fields.pop("reward", None)
        snapshot = None if reward is None else RewardSnapshot(**reward)
        return RuntimeState(**fields, kl_window=kl, reward_window=rewards, reward=snapshot)
    except (ValueError, TypeError, KeyError, zstandard.ZstdError) as error:
        raise DamagedError(f"not a runtime state ({error})", where=where) from None


class RuntimeFile:
    """The runtime state in the run's folder: after every so many steps, and when an error or SAFE_MODE ends the run."""

    def __init__(self, storage: Storage, writes: Writes, every: int, encode: Callable[[int], bytes]) -> None:
        """``encode``: the runtime state after a step."""
        self._storage, self._writes, self._every, self._encode = storage, writes, every, encode

    def stepped(self, step: int) -> None:
        if step % self._every == 0:
            self.keep(step)

    def keep(self, step: int) -> None:
        """Hand it to the writer thread. What is there is replaced as a whole."""
        data = self._encode(step)
        self._writes.submit(lambda: self._storage.put(FILE, data))
