"""What a check before the start found, and how findings are raised together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigError, PreflightError, VerlError


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the value of ``key`` (dotted): an error, or a warning that does not stop the start."""

    key: str
    what: str
    remedy: str
    warning: bool = False

    def error(self, places: Mapping[str, str]) -> ConfigError:
        """As an error that names the key and, where known, the file and line that set it."""
        return ConfigError(self.what, where=where(self.key, places), remedy=self.remedy)


def where(key: str, places: Mapping[str, str], shown: str = "") -> str:
    """``file:line: key`` or ``--set key`` where the place is known, else the key; ``shown`` is the key as written."""
    place = places.get(key, "")
    return f"{place}{' ' if place == '--set' else ': ' if place else ''}{shown or key}"


def raise_all(errors: Sequence[VerlError]) -> None:
    """Nothing for none, the error itself for one, ``PreflightError`` for more."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise PreflightError(errors)
