"""``python -m benchmarks.measure MODULE FILE``: one group in a process of its own, its figures as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    module, target = sys.argv[1:]
    figures: dict[str, float] = importlib.import_module(module).measure()
    Path(target).write_text(json.dumps(figures))
