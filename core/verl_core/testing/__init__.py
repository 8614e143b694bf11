"""Conformance suites for plugins, stores in memory, and fault injectors.

The suites are classes of pytest, which the others do without: they are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .suites.committed import CheckpointerSuite, RolloutWriterSuite
    from .suites.decisions import AlgorithmSuite, RecoveryPolicySuite, RewardSuite
    from .suites.files import FileStorageSuite
    from .suites.hung import HungStorageSuite
    from .suites.monitoring import AlertSinkSuite, DeadAlertSinkSuite, MetricSinkSuite
    from .suites.storage import StorageSuite

__all__ = [
    "AlertSinkSuite",
    "AlgorithmSuite",
    "CheckpointerSuite",
    "DeadAlertSinkSuite",
    "FileStorageSuite",
    "HungStorageSuite",
    "MetricSinkSuite",
    "RecoveryPolicySuite",
    "RewardSuite",
    "RolloutWriterSuite",
    "StorageSuite",
]
_MODULES = {
    "committed": ("CheckpointerSuite", "RolloutWriterSuite"),
    "decisions": ("AlgorithmSuite", "RecoveryPolicySuite", "RewardSuite"),
    "files": ("FileStorageSuite",),
    "hung": ("HungStorageSuite",),
    "monitoring": ("AlertSinkSuite", "DeadAlertSinkSuite", "MetricSinkSuite"),
    "storage": ("StorageSuite",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".suites.{_MODULE_OF[name]}", __name__), name)
