"""How checkpoints of older schemas are read: one step a schema, to the next one, or the reason why not.

``schemas/N.json`` is the ``schema_version.json`` of schema N. Whoever changes a stored record after its schema was
released raises ``schema.SCHEMA``, adds a module here that says how the files of the old schema are read, and keeps a
small run of the old schema below ``tests/data/schemas/``. A migration changes nothing on disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import from_1
from .step import Migrated, Migration, Refusal, Step

__all__ = ["STEPS", "Migrated", "Migration", "Refusal", "Step"]

STEPS: Mapping[int, Step] = {1: from_1.STEP}
