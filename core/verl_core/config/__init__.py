"""The configuration: composed from files, fragments and overrides, typed, checked, and shown without secrets."""

from .checks import Report, inspect_config
from .compose import packaged_configs
from .load import LoadedConfig, load_config, read_config
from .schema import Config
from .shape import known_keys

__all__ = [
    "Config",
    "LoadedConfig",
    "Report",
    "inspect_config",
    "known_keys",
    "load_config",
    "packaged_configs",
    "read_config",
]
