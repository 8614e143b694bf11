"""``verl-core update-reward``: the command of articles on resuming runs. Here a reward is a key of the config."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

import typer

from ..errors import InputError
from ..plugins import load
from ..registry import REWARD

_CHECKPOINT = re.compile(r"(?P<run>.+?)/(?:checkpoints/)?step_0*(?P<step>\d+)/?")


def update_reward(
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="A checkpoint of the run: RUN/checkpoints/step_N.")],
    new_model: Annotated[str, typer.Option("--new-model", help="The reward to go on with.")],
) -> None:
    """Say how a run goes on with another reward. Changes nothing; leaves with exit code 2."""
    place = _CHECKPOINT.fullmatch(checkpoint)
    run, step = (place["run"], place["step"]) if place else ("RUN", "N")
    known = load([], defaults=False).registry.names(REWARD)
    function = new_model if new_model in known or ":" in new_model else "package.module:function"
    keys = f"--set model.reward.name={shlex.quote(function)} --force-resume"
    command = f"verl-core run --run-dir {shlex.quote(run)} --resume-from-step {step} {keys}"
    if function == new_model:
        raise InputError("the reward is a key of the config here", where=new_model, remedy=command)
    what = f"is no reward: rewards are functions here, {', '.join(known)} or one of your own, which may ask a model"
    raise InputError(what, where=new_model, remedy=command)
