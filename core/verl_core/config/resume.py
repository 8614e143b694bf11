"""What may change between two starts of one run, and what may not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from .schema import Config

MAY_CHANGE = (
    "plugins",
    "backup",
    "data.fingerprint",
    "frozen",
    "distributed",
    "monitoring",
    "storage.keep_checkpoints",
    "storage.max_concurrent_uploads",
    "storage.options",
    "storage.single_committer",
    "training.device",
    "training.deterministic",
    "training.eval_interval_steps",
    "training.fault_tolerance",
    "training.runtime_interval_steps",
    "model.actor.hybrid_engine",
    "rollout.strict",
)


def changed_keys(old: Config, new: Config) -> list[str]:
    """Keys that differ and must not, as ``key: old → new``. More steps are fine while the learning rate is constant."""
    free = (*MAY_CHANGE, "total_steps", "total_epochs") if new.training.optim.schedule == "constant" else MAY_CHANGE
    before, after = dict(_leaves(asdict(old))), dict(_leaves(asdict(new)))
    return [
        f"{key}: {before.get(key)!r} → {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not any(key == f or key.startswith(f"{f}.") for f in free)
    ]


def _leaves(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
