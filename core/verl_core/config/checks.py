"""Everything that is checked before a model is loaded or a byte is written, reported together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import PreflightError, VerlError
from .constraints import check_constraints
from .findings import Finding
from .model_folder import check_model_folder
from .paths import MODEL, check_paths
from .schema import Config


@dataclass(frozen=True, slots=True)
class Report:
    """``errors`` stop the start, ``warnings`` do not."""

    errors: tuple[VerlError, ...]
    warnings: tuple[VerlError, ...]


def inspect_config(config: Config, *, run_dir: str | None = None, places: Mapping[str, str] | None = None) -> Report:
    """Constraints, paths and the model folder. Reads files, writes nothing."""
    findings: list[Finding] = [*check_constraints(config), *check_paths(config, run_dir)]
    model: Sequence[VerlError] = ()
    if not any(finding.key == MODEL for finding in findings):
        model = check_model_folder(
            config.model.actor.path,
            allow_pickle=config.model.allow_pickle,
            extra_tokenizer_classes=config.model.tokenizer_classes,
        )
    errors = [finding.error(places or {}) for finding in findings if not finding.warning]
    warnings = [finding.error(places or {}) for finding in findings if finding.warning]
    return Report((*errors, *model), tuple(warnings))


def preflight(
    config: Config,
    *,
    run_dir: str | None = None,
    places: Mapping[str, str] | None = None,
    more: Sequence[VerlError] = (),
) -> tuple[VerlError, ...]:
    """The warnings of ``inspect_config``. Raises ``PreflightError`` with all its errors and those of ``more``."""
    report = inspect_config(config, run_dir=run_dir, places=places)
    if errors := (*report.errors, *more):
        raise PreflightError(errors)
    return report.warnings
