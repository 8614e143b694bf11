"""Measurements of verl-core: ``python -m benchmarks``."""
