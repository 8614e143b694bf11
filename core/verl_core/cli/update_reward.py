"""``verl-core update-reward``: a run goes on with another reward. What is committed keeps its own."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from .. import plugins as plugin_loader
from ..api import absolute_uri
from ..assemble import committed_batches
from ..config.load import read_config
from ..config.schema import RewardConfig
from ..errors import InputError
from ..inputs import Inputs, Start
from ..places import places_of, writer_at
from ..protocols import RolloutWriter, Storage
from ..registry import REWARD
from ..rewards.models import described, folder_of, source_of
from ..rewards.swap import build_after, fit, swapped
from ..state.events import RewardUpdated
from ..state.held import held_run
from ..state.history import History
from ..types import BatchKey, BatchRef, RewardSource, Sample
from .common import find_run
from .run import Plugins, own_config

COMMAND = "update-reward"  # stands where a controller's nonce stands
MODEL = "sequence_classifier"  # what a folder is taken for
SAMPLES = 256  # newest committed ones that the new outputs are fitted on
_CHECKPOINT = re.compile(r"(?P<run>.+?)(/checkpoints)?/step_\d+/?")


def update_reward(
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="The run, or a checkpoint of it.")],
    new_model: Annotated[str, typer.Option("--new-model", help="Folder of the new reward model, or a reward's name.")],
    name: Annotated[str, typer.Option("--name", help="Who asks for it; stands in the state log.")] = "",
    warm_start: Annotated[
        bool, typer.Option("--warm-start/--no-warm-start", help="Fit the new outputs to the scale of the old ones.")
    ] = True,
    plugins: Plugins = None,
) -> None:
    """Give a run another reward, durably; its next start goes on with it. Committed batches keep their rewards."""
    match = _CHECKPOINT.fullmatch(checkpoint)
    place = find_run(match["run"] if match else checkpoint)
    with held_run(place.storage, place.log_storage, place.log_path) as held:
        history, uri = held.history, place.storage.uri
        _check_open(history, uri)
        loaded = read_config(own_config(uri, plugins or []))
        found = plugin_loader.load([*loaded.config.plugins, *(plugins or [])])
        inputs = Inputs(loaded, found, Start(uri))
        update = _update(inputs, place.storage, history, new_model, name, warm_start)
        held.note(RewardUpdated.name, history.state, update, COMMAND)
    fitted = f", scale {update.scale:.6g} and shift {update.shift:.6g}" if update.samples else ""
    typer.echo(f"scored by {described(update.new)} from step {update.from_step} on{fitted}; run it again to go on")


def _check_open(history: History, uri: str) -> None:
    """Raises InputError for a run that has no batch to score any more, or none yet."""
    if history.total_steps is None:
        raise InputError("the run was never started", where=uri, remedy="give the reward in its config: model.reward")
    if history.step >= history.total_steps:
        what = f"the run is finished, at step {history.step} of {history.total_steps}: there is nothing left to score"
        raise InputError(what, where=uri, remedy="start a new run with the reward in its config")


def _update(
    inputs: Inputs, storage: Storage, history: History, new_model: str, name: str, warm_start: bool
) -> RewardUpdated:
    """The decision, once the new reward was checked and built as a start would. Raises InputError."""
    registry, config = inputs.plugins.registry, inputs.config
    block = _block(inputs, new_model)
    registry.check_options(REWARD, block.name, block.options)
    new = source_of(registry, block, config.model.tokenizer_classes, inputs.hashes)
    if new == history.reward:
        raise InputError("it scores this run already", where=new_model, remedy="name another folder or reward")
    context = inputs.context(history.run_id, history.branch, history.attempt)
    reward = build_after(registry, block, (), context)
    writer = writer_at(inputs, places_of(inputs, storage).rollouts, context)
    committed = committed_batches(writer, history, inputs.schedule)
    from_step = history.step + 1
    while all(key in committed for key in inputs.schedule.keys(from_step)):
        from_step += 1
    scale, shift, samples = 1.0, 0.0, 0
    if _moved(history.reward, new):
        scale, shift = history.scale
    elif warm_start and committed:
        rows, responses, old = _newest(writer, committed)
        prompts = {prompt.row: prompt for prompt in inputs.train.prompts}
        scale, shift = fit(reward.score([prompts[row] for row in rows], responses), old)
        samples = len(old)
    return RewardUpdated(name, history.reward, new, from_step, scale, shift, samples)


def _block(inputs: Inputs, new_model: str) -> RewardConfig:
    """``model.reward`` with the new reward in it."""
    first, registry = inputs.config.model.reward, inputs.plugins.registry
    if new_model in registry.names(REWARD) or ":" in new_model:
        return swapped(first, new_model, "")
    return swapped(first, first.name if folder_of(registry, first) else MODEL, absolute_uri(new_model))


def _moved(old: RewardSource, new: RewardSource) -> bool:
    """Whether it is the same model in another folder."""
    return old.digest == new.digest != ""


def _newest(writer: RolloutWriter, committed: dict[BatchKey, BatchRef]) -> tuple[list[int], list[str], list[float]]:
    """Rows, responses and rewards of the newest committed samples."""
    found: list[Sample] = []
    for key in sorted(committed, reverse=True):
        found += writer.load(committed[key])
        if len(found) >= SAMPLES:
            break
    return [s.row for s in found], [s.response for s in found], [s.reward for s in found]
