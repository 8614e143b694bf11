"""All defects, two at a time; first the tests themselves, which must pass on sound sources."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from .record import Mutant
from .trial import Copy, Trial

AT_ONCE = 2
SOUND_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    trial: Trial | None  # None: the time was up
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        return self.trial is not None and self.trial.outcome == "failed"


def check(mutants: Sequence[Mutant], budget_s: float, tell: Callable[[Result], object]) -> list[Result]:
    """Try every mutant, and ``tell`` of each as it is done.

    Raises AssertionError when the tests do not pass without a defect, since then a failure says nothing.
    """
    until = time.monotonic() + budget_s
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(AT_ONCE) as pool:
        copies = [Copy(_made(Path(name, str(number)))) for number in range(AT_ONCE)]
        _sound(pool, copies, list(dict.fromkeys(test for mutant in mutants for test in mutant.tests)))
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def one(mutant: Mutant) -> Result:
            copy, begin = free.get(), time.monotonic()
            try:
                trial = copy.try_out(mutant) if begin < until else None
            finally:
                free.put(copy)
            result = Result(mutant, trial, time.monotonic() - begin)
            tell(result)
            return result

        return list(pool.map(one, mutants))


def _sound(pool: ThreadPoolExecutor, copies: Sequence[Copy], tests: Sequence[str]) -> None:
    shares = [(copy, tests[number :: len(copies)]) for number, copy in enumerate(copies)]
    trials = pool.map(lambda share: share[0].run(share[1], limit_s=SOUND_LIMIT_S) if share[1] else None, shares)
    for trial in trials:
        assert trial is None or trial.outcome == "passed", f"without a defect: {trial.outcome}\n{trial.text}"


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
