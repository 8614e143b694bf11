"""What a start is given: config, plugins, data, tokenizer. All of it is read before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from tempfile import NamedTemporaryFile

import orjson

from .config.load import LoadedConfig, read_config
from .config.schema import Config
from .data.fingerprint import Fingerprint, difference
from .data.prompts import PromptSet, load_prompts
from .data.tokenizer import Tokenizer, load_tokenizer
from .errors import PluginError, RunMismatch
from .plugins import Loaded
from .protocols import FileStorage, Storage
from .registry import STORAGE, Kind
from .state.claim import RUN
from .state.folder import LOG, OpenRun, read_history
from .state.history import History
from .state.schedule import Schedule
from .types import BuildContext, Optim

log = logging.getLogger("verl")
CONFIG, FINGERPRINT, ORCHESTRATION = "config.yaml", ".dataset_fingerprint", "orchestration.json"


@dataclass(frozen=True, slots=True)
class Start:
    """How a run is started: see ``verl-core run --help``."""

    run_dir: str  # absolute path or URI
    resume: str = "auto"  # auto | never | a checkpoint of this run
    until_step: int | None = None
    force_resume: bool = False


@dataclass(frozen=True)
class Inputs:
    """Everything that is read before anything is written."""

    loaded: LoadedConfig
    plugins: Loaded
    start: Start

    @property
    def config(self) -> Config:
        return self.loaded.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.config.model.actor.path, self.config.model.tokenizer_classes)

    @cached_property
    def train(self) -> PromptSet:
        return load_prompts(self.config.data, self.tokenizer, split="train", seed=self.config.seed)

    @cached_property
    def val(self) -> PromptSet | None:
        if not self.config.training.eval_interval_steps:
            return None
        return load_prompts(self.config.data, self.tokenizer, split="val", seed=self.config.seed)

    @cached_property
    def schedule(self) -> Schedule:
        c = self.config
        rows = tuple(p.row for p in self.train.prompts)
        schedule = Schedule(
            c.seed, rows, c.rollout.prompts_per_batch, c.training.prompts_per_step, c.data.shuffle, c.total_steps
        )
        if c.total_epochs is None:
            return schedule
        return replace(schedule, total_steps=min(c.total_steps, c.total_epochs * schedule.steps_per_epoch))

    def name(self, kind: Kind[..., object], wanted: str | None) -> str:
        """The provider that the config names, or the only one that is loaded."""
        return wanted if wanted is not None else self.plugins.registry.only(kind)

    def until(self, step: int) -> Inputs:
        """The same start, ending after ``step``."""
        return replace(self, start=replace(self.start, until_step=step))

    def history(self) -> History | None:
        """What the state log in the run's folder tells, or None where nothing was begun. Takes no lock."""
        storage = file_storage(storage_at(self.plugins, self.config, self.start.run_dir), "a run folder")
        if storage.stat(RUN) is None:
            return None
        return read_history(storage, *log_place(self.plugins, self.config, storage))

    def context(self, run_id: str, branch: int, attempt: int) -> BuildContext:
        c, optim = self.config, self.config.training.optim
        fields = Optim(
            optim.lr, (optim.betas[0], optim.betas[1]), optim.eps, optim.weight_decay, optim.grad_clip, optim.schedule,
            optim.warmup_steps,
        )  # fmt: skip
        return BuildContext(
            run_id=run_id,
            branch=branch,
            attempt=attempt,
            seed=c.seed,
            model_path=c.model.actor.path,
            allow_pickle=c.model.allow_pickle,
            dtype=c.model.actor.dtype,
            device=c.training.device,
            threads=c.training.threads,
            pad_id=self.tokenizer.pad_id,
            eos_ids=self.tokenizer.eos_ids,
            optim=fields,
            micro_batch_size=c.training.micro_batch_size,
            total_steps=c.total_steps,
            temperature=c.rollout.temperature,
            deterministic=c.training.deterministic,
        )


def storage_at(plugins: Loaded, config: Config, uri: str) -> Storage:
    """Open a URI with the provider of its scheme; its options are those of the ``storage`` block."""
    name = provider_of(uri)
    return plugins.registry.build(STORAGE, name, config.storage.options, BuildContext(uri=uri))


def provider_of(uri: str) -> str:
    """The storage plugin for a URI: ``local`` for paths and ``file://``, else the scheme's name."""
    scheme, separator, _ = uri.partition("://")
    return scheme if separator and scheme != "file" else "local"


def file_storage(storage: Storage, what: str) -> FileStorage:
    if not isinstance(storage, FileStorage):
        raise PluginError(f"{what} needs a file system", where=storage.uri, remedy="give a path on a file system")
    return storage


def log_place(plugins: Loaded, config: Config, run: FileStorage) -> tuple[FileStorage, str]:
    """Where the state log lies: in the run folder, or at ``state_log_path``."""
    path = config.training.fault_tolerance.state_log_path
    if path is None:
        return run, LOG
    folder, _, name = path.rpartition("/")
    return file_storage(storage_at(plugins, config, folder or "/"), "the state log"), name


def record_inputs(inputs: Inputs, run: OpenRun) -> str:
    """Hold config and data against those that the run began with, then write them down. Returns the config's text."""
    text = inputs.loaded.config_text()
    if run.storage.stat(CONFIG) is not None:
        changed = inputs.loaded.changed_since(run.storage.get(CONFIG).decode())
        _refuse(changed, "the config changed", run, inputs.start.force_resume)
    fingerprint = inputs.train.source
    if run.storage.stat(FINGERPRINT) is not None:
        old = Fingerprint.from_json(run.storage.get(FINGERPRINT))
        _refuse(difference(old, fingerprint), "the data set changed", run, inputs.start.force_resume)
    orchestration = {
        "format": 1,
        "data": [{"file": name, "size": size, "hash": digest} for name, digest, size in inputs.train.files],
        "world_size": inputs.config.distributed.train_ranks,
        "rollout_workers": inputs.config.distributed.rollout_workers,
        "state_log": f"{run.log_storage.uri}/{run.log_path}",
    }
    described = orjson.dumps(orchestration, option=orjson.OPT_INDENT_2)
    for name, data in (
        (CONFIG, text.encode()),
        (FINGERPRINT, fingerprint.to_json().encode()),
        (ORCHESTRATION, described),
    ):
        if run.storage.stat(name) is None or run.storage.get(name) != data:
            run.storage.put(name, data)
    return text


def _refuse(differences: Sequence[str], what: str, run: OpenRun, force: bool) -> None:
    if not differences:
        return
    listed = "; ".join(differences)
    if not force:
        raise RunMismatch(
            f"{what}: {listed}", where=run.storage.uri, remedy="undo it, use another --run-dir, or --force-resume"
        )
    log.warning("%s, resumed by force: %s", what, listed)


def saved_config(text: bytes) -> Config:
    """The config that lies in a run's folder; interpolations are read from today's environment."""
    with NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text)
        file.flush()
        return read_config(file.name).config
