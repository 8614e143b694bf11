"""AdamW with clipping, in single precision: parameters of a narrower type keep a master copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from verl_core.types import Optim


def learning_rate(optim: Optim, step: int, total_steps: int) -> float:
    """Of training step ``step`` (from 1): linear warm-up, then constant, or down to zero behind the last step."""
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    progress = min(1.0, (step - 1 - optim.warmup_steps) / max(1, total_steps - optim.warmup_steps))
    if optim.schedule == "linear":
        return optim.lr * (1.0 - progress)
    if optim.schedule == "cosine":
        return optim.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
    return optim.lr


class MasterAdamW:
    """The optimizer of named parameters; nothing is allocated in ``apply``, so it either happens or does not."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], optim: Optim, total_steps: int) -> None:
        self._parameters, self._optim, self._total_steps = dict(parameters), optim, total_steps
        self._masters = {
            name: p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float())
            for name, p in parameters.items()
        }
        self._adam = torch.optim.AdamW(
            self._masters.values(),
            lr=optim.lr,
            betas=optim.betas,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            fused=True,
        )
        for master in self._masters.values():
            self._adam.state[master] = {
                "step": torch.zeros((), device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def clip(self) -> float:
        """Scale the gradients down to the norm ``grad_clip`` (0: leave them) and return their norm before."""
        for name, master in self._masters.items():
            gradient = self._parameters[name].grad
            master.grad = torch.zeros_like(master) if gradient is None else gradient.float()
        limit = self._optim.grad_clip or math.inf
        return float(torch.nn.utils.clip_grad_norm_(self._masters.values(), limit))

    def apply(self, step: int) -> float:
        """Update the parameters with the clipped gradients and return the learning rate."""
        rate = learning_rate(self._optim, step, self._total_steps)
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        with torch.no_grad():
            for name, master in self._masters.items():
                if master is not self._parameters[name]:
                    self._parameters[name].copy_(master)
        return rate

    def discard_gradients(self) -> None:
        for name, master in self._masters.items():
            master.grad = self._parameters[name].grad = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state by name, without copies, save for ``step``, which all parameters share."""
        named: dict[str, torch.Tensor] = {"step": next(iter(self._adam.state.values()))["step"].long()}
        for name, master in self._masters.items():
            for key in ("exp_avg", "exp_avg_sq"):
                named[f"{key}.{name}"] = self._adam.state[master][key]
            if master is not self._parameters[name]:
                named[f"master.{name}"] = master.detach()
        return named

    def take_parameters(self) -> None:
        """Make the master copies anew from the parameters."""
        with torch.no_grad():
            for name, master in self._masters.items():
                master.copy_(self._parameters[name])

    def set_step(self, step: int) -> None:
        for state in self._adam.state.values():
            state["step"].fill_(step)
