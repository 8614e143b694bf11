"""Which dotted keys are ours."""

from __future__ import annotations

from typing import Literal

from .schema import Config
from .shape import ALIASES, OPTIONS, block_type, hints


def native(key: str) -> Literal["block", "value", "option"] | None:
    """What the schema has under a key; ``option``: nothing, but the block takes a plugin's own keys."""
    if key in ALIASES or key == "defaults":
        return "value"
    record: type = Config
    for part in key.split("."):
        known = hints(record)
        if part not in known:
            return "option" if OPTIONS in known else None
        inner = block_type(known[part])
        if inner is None:
            return "value"  # what lies below is a part of it
        record = inner
    return "block"
