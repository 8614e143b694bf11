"""What a start is given: config, plugins, data, tokenizer. All of it is read before anything is written."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import orjson

from .config.devices import Placement
from .config.load import LoadedConfig, read_saved
from .config.options import options_of
from .config.schema import Config
from .data.fingerprint import Fingerprint, difference
from .data.hashes import FileHashes
from .data.prompts import PromptSet, load_prompts
from .data.tokenizer import Tokenizer, load_tokenizer
from .errors import RunMismatch
from .plugins import Loaded
from .protocols import Storage
from .registry import STORAGE, Kind
from .rewards.models import described, source_of
from .rewards.swap import block_after
from .state.claim import RUN
from .state.folder import LOG, OpenRun, read_history
from .state.history import History
from .state.schedule import Schedule
from .types import BuildContext, Optim, RewardSource

log = logging.getLogger("verl")
CONFIG, FINGERPRINT, ORCHESTRATION = "config.yaml", ".dataset_fingerprint", "orchestration.json"
HASHES = ".dataset_fingerprint.cache"
UNWANTED = "the data are not those of data.fingerprint"


@dataclass(frozen=True, slots=True)
class Start:
    """How a run is started: see ``verl-core run --help``."""

    run_dir: str  # absolute path or URI
    resume: str = "auto"  # auto | never | a checkpoint of this run
    until_step: int | None = None
    force_resume: bool = False
    take_over: bool = False  # do not wait for a controller on another host that may be dead


@dataclass(frozen=True)
class Inputs:
    """Everything that is read before anything is written."""

    loaded: LoadedConfig
    plugins: Loaded
    start: Start
    placement: Placement = field(default_factory=Placement)

    @property
    def config(self) -> Config:
        return self.loaded.config

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.config.model.actor.path, self.config.model.tokenizer_classes)

    @cached_property
    def train(self) -> PromptSet:
        return self._prompts("train")

    @cached_property
    def val(self) -> PromptSet | None:
        if not self.config.training.eval_interval_steps:
            return None
        return self._prompts("val")

    @cached_property
    def hashes(self) -> FileHashes:
        """Of data files, as an earlier start of this run found them."""
        if not self.start.run_dir:
            return FileHashes()
        storage = storage_at(self.plugins, self.config, self.start.run_dir)
        return FileHashes() if storage.stat(HASHES) is None else FileHashes.decode(storage.get(HASHES))

    def _prompts(self, split: Literal["train", "val"]) -> PromptSet:
        data, seed = self.config.data, self.config.seed
        return load_prompts(data, self.tokenizer, split=split, seed=seed, hashes=self.hashes)

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
        storage = storage_at(self.plugins, self.config, self.start.run_dir)
        if storage.stat(RUN) is None:
            return None
        return read_history(storage, *log_place(self.plugins, self.config, storage))

    def reward_source(self, history: History) -> RewardSource:
        """What scores from here on. Raises ModelError unless it is safe and complete."""
        model = self.config.model
        block = block_after(model.reward, history.swaps)
        return source_of(self.plugins.registry, block, model.tokenizer_classes, self.hashes)

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
            tokenizer_classes=tuple(c.model.tokenizer_classes),
            dtype=c.model.actor.dtype,
            device=c.training.device,
            threads=c.training.threads,
            pad_id=self.tokenizer.pad_id,
            eos_ids=self.tokenizer.eos_ids,
            optim=fields,
            micro_batch_size=c.training.micro_batch_size,
            total_steps=self.schedule.total_steps,
            temperature=c.rollout.temperature,
            deterministic=c.training.deterministic,
        )


def storage_at(plugins: Loaded, config: Config, uri: str) -> Storage:
    """Open a URI with the provider of its scheme; its options are those of the ``storage`` block."""
    name, block = provider_of(uri), config.storage
    context = BuildContext(
        uri=uri, max_concurrent_uploads=block.max_concurrent_uploads, on_wait=lambda e: plugins.observers.on_wait(e)
    )
    return plugins.registry.build(STORAGE, name, options_of(plugins.registry, STORAGE, name, block.options), context)


def provider_of(uri: str) -> str:
    """The storage plugin for a URI: ``local`` for paths and ``file://``, else the scheme's name."""
    scheme, separator, _ = uri.partition("://")
    return scheme if separator and scheme != "file" else "local"


def log_place(plugins: Loaded, config: Config, run: Storage) -> tuple[Storage, str]:
    """Where the state log lies: in the run folder, or at ``state_log_path``."""
    path = config.training.fault_tolerance.state_log_path
    if path is None:
        return run, LOG
    folder, _, name = path.rpartition("/")
    return storage_at(plugins, config, folder or "/"), name


def unwanted_data(inputs: Inputs) -> list[str]:
    """What is wrong with the training data before any run is looked at. Raises RunMismatch unless forced."""
    wanted, found = inputs.config.data.fingerprint, inputs.train.fingerprint
    if wanted in (None, found):
        return []
    if not inputs.start.force_resume:
        remedy = "give those data, leave the key out, or --force-resume"
        raise RunMismatch(f"{UNWANTED}: {wanted} → {found}", where="data.fingerprint", remedy=remedy)
    return [f"{wanted} → {found}"]


def changes_of(inputs: Inputs, run: OpenRun, reward: RewardSource) -> list[str]:
    """What differs from what the run began with and must not, in words. Raises RunMismatch unless forced."""
    train, val, there = inputs.train, inputs.val, run.storage
    found: list[tuple[str, list[str]]] = []
    if there.stat(CONFIG) is not None:
        found.append(("the config changed", inputs.loaded.changed_since(there.get(CONFIG).decode())))
    if there.stat(FINGERPRINT) is not None:
        text = there.get(FINGERPRINT)
        before, before_val = Fingerprint.from_json(text), Fingerprint.val_from_json(text)
        found.append(("the data set changed", difference(before, train.source, train.paths, inputs.hashes)))
        if val is not None and before_val is not None:
            differing = difference(before_val, val.source, val.paths, inputs.hashes)
            found.append(("the evaluation data changed", differing))
    found.append((UNWANTED, unwanted_data(inputs)))
    known = run.history.reward
    if known.digest and known.digest != reward.digest:
        found.append(("the reward model changed", [f"{described(known)} → {described(reward)}"]))
    changes = [f"{what}: {'; '.join(lines)}" for what, lines in found if lines]
    if changes and not inputs.start.force_resume:
        remedy = "undo it, use another --run-dir, or --force-resume"
        if any("model.reward" in change or "reward model" in change for change in changes):
            remedy += "; to go on with another reward: verl-core update-reward"
        raise RunMismatch("; ".join(changes), where=there.uri, remedy=remedy)
    for change in changes:
        log.warning("%s, resumed by force", change)
    return changes


def record_inputs(inputs: Inputs, run: OpenRun) -> None:
    """Write config and data down in the run's folder."""
    train, val = inputs.train, inputs.val
    orchestration = {
        "format": 1,
        "data": [{"file": name, "size": size, "hash": digest} for name, digest, size in train.files],
        "world_size": inputs.config.distributed.train_ranks,
        "rollout_workers": inputs.config.distributed.rollout_workers,
        "devices": {"train": inputs.placement.train, "rollout": inputs.placement.rollout},
        "state_log": f"{run.log_storage.uri}/{run.log_path}",
    }
    for name, data in (
        (CONFIG, inputs.loaded.config_text().encode()),
        (FINGERPRINT, train.source.to_json(val.source if val else None).encode()),
        (ORCHESTRATION, orjson.dumps(orchestration, option=orjson.OPT_INDENT_2)),
        (HASHES, inputs.hashes.encode()),
    ):
        if data and (run.storage.stat(name) is None or run.storage.get(name) != data):
            run.storage.put(name, data)


def saved_config(text: bytes) -> Config:
    """The config that lies in a run's folder; interpolations are read from today's environment, and what was a secret
    in the clear is masked."""
    return read_saved(text.decode()).config
