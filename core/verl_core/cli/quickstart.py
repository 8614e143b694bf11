"""``verl-core quickstart``: make a small model and its data inside the run folder, then run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .. import api
from ..config.compose import packaged_configs
from ..config.constraints import check_constraints
from ..config.findings import raise_all
from ..config.load import read_config
from ..errors import InputError
from ..inputs import provider_of
from ..quickstart.model import make_tiny_model
from ..quickstart.smollm2 import make_smollm2
from ..quickstart.task import write_sort_task
from .run import DryRun, ForceResume, MaxRestarts, Overrides, Plugins, Resume, UntilStep, start

DEFAULT = "runs/quickstart"


class Recipe(StrEnum):
    SORT = "sort"
    SMOLLM2 = "smollm2"


def quickstart(
    run_dir: Annotated[str, typer.Option("--run-dir", help="Folder or URI that holds the run.")] = DEFAULT,
    recipe: Annotated[
        Recipe, typer.Option(help="sort: a tiny model learns to sort letters; smollm2: SmolLM2-135M on --data (GSM8K).")
    ] = Recipe.SORT,
    data: Annotated[str | None, typer.Option("--data", help="GSM8K train.jsonl, for smollm2.")] = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    resume: Resume = "auto",
    until_step: UntilStep = None,
    dry_run: DryRun = False,
    max_restarts: MaxRestarts = 0,
    force_resume: ForceResume = False,
    config: Annotated[str | None, typer.Option("--config", help="Instead of the recipe's own config.")] = None,
) -> None:
    """Train a tiny model by GRPO, from nothing, in about two minutes. Kill it at any time and start it again."""
    place = api.absolute_uri(run_dir)
    # with a run on an object store, model and data lie where the run would be by default
    folder = Path(place.removeprefix("file://") if provider_of(place) == "local" else api.absolute_uri(DEFAULT))
    model, file = folder / "model", folder / "data" / "sort.jsonl"
    if recipe is Recipe.SMOLLM2:
        if data is None:
            raise InputError("no --data given", where="quickstart", remedy="--data FILE, GSM8K's train.jsonl")
        file = Path(data).expanduser().absolute()
    inputs = {"model": {"actor": {"path": str(model)}}, "data": {"train_files": [str(file)]}}
    name = "quickstart.yaml" if recipe is Recipe.SORT else "gsm8k-smollm2.yaml"
    given = [f"model.actor.path={model}", f"data.train_files=[{file}]", *(overrides or [])]
    loaded = read_config(config or str(packaged_configs() / name), given, base=inputs)
    raise_all([finding.error(loaded.places) for finding in check_constraints(loaded.config) if not finding.warning])

    def make() -> None:
        """Deterministic and atomic: a kill in here leaves nothing that a later start would take for whole."""
        if not model.exists():
            typer.echo(f"making the model in {model} (some seconds)")
        if recipe is Recipe.SMOLLM2:
            make_smollm2(model)
        else:
            write_sort_task(file.parent, loaded.config.seed)
            make_tiny_model(model, loaded.config.seed)

    start(loaded, place, plugins or [], resume, until_step, dry_run, max_restarts, force_resume, make)
