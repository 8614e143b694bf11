"""Alert sink ``acme_file``: one line an alert, at the end of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from verl_core.types import Alert, BuildContext


@dataclass
class FileConfig:
    """What the user may set: ``monitoring: {acme_file: {path: …}}``."""

    path: str = "alerts.txt"


class FileSink:
    def __init__(self, config: FileConfig, context: BuildContext) -> None:
        self._path = Path(config.path)

    def send(self, alert: Alert) -> None:
        line = " ".join(f"{alert.severity}: {alert.title}: {alert.text}".splitlines())
        with self._path.open("a") as file:
            file.write(f"{line}\n")
