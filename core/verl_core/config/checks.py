"""What a config itself and the files that it names show to be wrong, reported together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError, VerlError
from .bounded import STUCK, bounded
from .constraints import check_constraints
from .findings import Finding
from .frozen import check_frozen
from .model_folder import check_model_folder
from .nccl import check_nccl, shown
from .paths import FROZEN, MODEL, check_paths
from .schema import Config

Fact = tuple[str, str]  # which check, and what it found to be so


@dataclass(frozen=True, slots=True)
class Report:
    """``errors`` stop the start, ``warnings`` do not; ``facts`` are for people to see."""

    errors: tuple[VerlError, ...] = ()
    warnings: tuple[VerlError, ...] = ()
    facts: tuple[Fact, ...] = ()
    wrong: frozenset[str] = frozenset()  # keys with errors

    @staticmethod
    def of(findings: Iterable[Finding], places: Mapping[str, str], facts: Iterable[Fact] = ()) -> Report:
        findings = list(findings)
        return Report(
            tuple(finding.error(places) for finding in findings if not finding.warning),
            tuple(finding.error(places) for finding in findings if finding.warning),
            tuple(facts),
            frozenset(finding.key for finding in findings if not finding.warning),
        )

    def __add__(self, other: Report) -> Report:
        return Report(
            self.errors + other.errors,
            self.warnings + other.warnings,
            self.facts + other.facts,
            self.wrong | other.wrong,
        )


def inspect_config(config: Config, *, run_dir: str | None = None, places: Mapping[str, str] | None = None) -> Report:
    """Constraints, paths, the model folder, pins and NCCL's variables. Reads files, writes nothing."""
    nccl, known = config.distributed.nccl, places or {}
    findings = [*check_constraints(config), *check_paths(config, run_dir), *check_nccl(nccl, os.environ)]
    wrong = {finding.key for finding in findings}
    if config.frozen is not None and FROZEN not in wrong:
        findings += check_frozen(Path(config.frozen))
    report = Report.of(findings, known, [("nccl", text) for text in shown(nccl, os.environ)])
    return report if MODEL in wrong else report + Report(errors=tuple(_model(config)))


def _model(config: Config) -> Sequence[VerlError]:
    return bounded_check(config.model.actor.path, config.model.allow_pickle, config.model.tokenizer_classes)


def bounded_check(path: str, allow_pickle: bool | None, tokenizer_classes: Sequence[str]) -> Sequence[ModelError]:
    """``check_model_folder``, for a folder whose mount may be stuck."""
    try:
        return bounded(
            lambda: check_model_folder(path, allow_pickle=allow_pickle, extra_tokenizer_classes=tokenizer_classes)
        )
    except TimeoutError as error:
        return [ModelError(str(error), where=path, remedy=STUCK)]
