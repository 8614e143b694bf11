"""verl-core: reinforcement-learning post-training of language models that survives kill -9.

Importing this package loads neither torch nor ray nor any plugin; the names below are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import Trainer, create_trainer, get_available_backends
    from .hookspecs import hookimpl

__version__ = version("verl-core")
__all__ = ["Trainer", "__version__", "create_trainer", "get_available_backends", "hookimpl"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'verl_core' has no attribute {name!r}")
    home = "hookspecs" if name == "hookimpl" else "api"
    return getattr(import_module(f".{home}", __name__), name)
