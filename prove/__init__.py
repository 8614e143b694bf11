"""Long proofs of the promise, by enumeration and by injury: ``python -m prove``."""
