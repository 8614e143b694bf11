"""Schema 1 → 2: the lock names the fields of each record instead of a hash, and covers more. No file differs."""

from .step import Migration

STEP = Migration("schema_version.json has a number and names fields; records and files are the same")
