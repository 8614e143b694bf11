"""Training engine ``fsdp``: parameters, optimizer and the update of one rank. One rank needs no process group.

Every piece that it hands out carries its place in the whole tensor, and every sum is over such pieces, so that more
ranks only mean smaller pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from verl_core.draws import seed_of
from verl_core.errors import ConfigError, OutOfMemory, WorkerError
from verl_core.hookspecs import Register, hookimpl
from verl_core.interchange.warm_start import moments_beside
from verl_core.protocols import HealthCheck, LossFn, TrainEngine
from verl_core.types import BuildContext, PlatformKey, Slice, TensorChunk, TensorSums, TrainBatch, UpdateMetrics

from .models import load_model, small_files
from .optimizer import MasterAdamW
from .packing import Layout, Pack, lay_out, micro_batches, packs_of
from .tensors import Staging, copy_in, tensor_sums, whole
from .torch_setup import DeviceCheck, platform_key, prepare

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass
class FsdpConfig:
    """Options of the engine."""

    attn_implementation: str = "sdpa"  # as transformers names it
    pack_groups: bool = True  # compute a group's prompt once, where the architecture allows it
    pack_tokens: int = 1024  # of one pack at most: attention costs its square; large models gain from more
    activation_checkpointing: bool = False


class FsdpEngine:
    """See ``protocols.TrainEngine``."""

    def __init__(self, config: FsdpConfig, context: BuildContext) -> None:
        if context.world_size != 1:
            raise ConfigError("the fsdp engine runs one rank", where="distributed.train_ranks", remedy="set it to 1")
        self._context = context
        self._device = prepare(context)
        self._model = load_model(context, self._device, config.attn_implementation)
        if config.activation_checkpointing:
            self._model.module.gradient_checkpointing_enable()
            self._model.module.train()  # checkpointing is off in eval mode; there is no dropout in either
        self._packed = config.pack_groups and self._model.takes_4d_mask
        self._max_tokens = config.pack_tokens if self._packed else 0
        parameters = {n: t for n, t in self._model.tensors.items() if isinstance(t, torch.nn.Parameter)}
        self._optimizer = MasterAdamW(parameters, context.optim, context.total_steps)
        self._staging = {"actor": Staging(), "optimizer": Staging()}
        self._files = small_files(context.model_path)
        size = context.micro_batch_size
        moments = moments_beside(context.model_path)  # of the run that the weights were imported from
        if moments is not None:
            self.load("optimizer", moments)
        self._layout = f"fsdp, {config.attn_implementation}, packs of {self._max_tokens}, micro-batch {size}"

    def close(self) -> None:
        """Nothing to release: the memory goes with the object."""

    # --- update ------------------------------------------------------------------------------

    def update(self, batch: TrainBatch, loss: LossFn) -> UpdateMetrics:
        """See the protocol. The loss is the mean over all response tokens of the step, however it is split up.

        ``kl`` is the k3 estimate of sampled against current policy (Schulman, "Approximating KL divergence", 2020),
        ``entropy`` the mean of -log p over the sampled tokens. Raises WorkerError for a loss or a gradient that is
        not finite; then, too, nothing changed.
        """
        where = f"step {batch.step}"
        torch.manual_seed(seed_of(self._context.seed, "train", batch.step))
        try:
            return self._update(batch, loss, where)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(error, MemoryError) and not any(mark in str(error) for mark in _OUT_OF_MEMORY):
                raise
            what = (str(error).splitlines() or ["out of memory"])[0]
        finally:
            self._optimizer.discard_gradients()
        if self._device.type == "cuda":  # behind the except block: its traceback held the tensors
            torch.cuda.empty_cache()
        raise OutOfMemory(what, where=where, remedy="lower training.micro_batch_size")

    def _update(self, batch: TrainBatch, loss: LossFn, where: str) -> UpdateMetrics:
        tokens = sum(map(len, batch.response_ids))
        limit = self._context.micro_batch_size
        totals: dict[str, torch.Tensor] = {}
        for packs in micro_batches(packs_of(batch, limit if self._packed else 1, self._max_tokens), limit):
            for name, value in self._backward(batch, packs, loss, tokens).items():
                totals[name] = totals[name] + value if name in totals else value
        norm = self._optimizer.clip()
        means = {name: float(value) / tokens for name, value in totals.items()}
        if not (math.isfinite(means["loss"]) and math.isfinite(norm)):
            what = f"loss {means['loss']} with gradient norm {norm} is not finite"
            raise WorkerError(what, where=where, remedy="lower training.optim.lr, or skip the step")
        rate = self._optimizer.apply(batch.step)
        known = {name: means.pop(name, 0.0) for name in ("loss", "kl", "clip_fraction", "entropy")}
        return UpdateMetrics(grad_norm=norm, lr=rate, tokens=tokens, extra=means, **known)

    def _backward(self, batch: TrainBatch, packs: Sequence[Pack], loss: LossFn, tokens: int) -> dict[str, torch.Tensor]:
        """Add the gradient of one micro-batch, and return sums over its tokens."""
        layout = lay_out(batch, packs, self._context.pad_id, self._device)
        logp = self._logp(layout)
        per_token, diagnostics = loss(logp, layout.old_logp, layout.advantages, layout.mask)
        total = (per_token * layout.mask).sum()
        torch.autograd.backward(total / tokens)
        with torch.no_grad():
            change = logp - layout.old_logp
            of_token = {**diagnostics, "kl": change.exp() - 1 - change, "entropy": -logp}
            sums = {name: (value * layout.mask).sum().double() for name, value in of_token.items()}
        return {**sums, "loss": total.detach().double()}

    def _logp(self, layout: Layout) -> torch.Tensor:
        """Log-probabilities ``[B, T]`` of the responses at the sampling temperature; 0 at padding."""
        module = self._model.module
        mask = layout.mask_4d(module.dtype) if self._packed else layout.mask_2d()
        logits = module(
            input_ids=layout.ids,
            attention_mask=mask,
            position_ids=layout.positions,
            use_cache=False,
            logits_to_keep=layout.keep,
        ).logits.float()
        if self._context.temperature not in (0.0, 1.0):
            logits = logits / self._context.temperature
        logprobs = logits.log_softmax(-1)
        chosen: torch.Tensor = logprobs.reshape(-1)[layout.sources * logprobs.shape[-1] + layout.targets]
        return chosen.where(layout.mask > 0, 0.0)

    # --- state -------------------------------------------------------------------------------

    def sums(self) -> Sequence[TensorSums]:
        return [tensor_sums(name, tensor) for name, tensor in sorted(self._model.tensors.items())]

    def slices(self, component: str) -> Sequence[Slice]:
        return [whole(name, tensor) for name, tensor in self._tensors(component).items()]

    def shards(self, component: str) -> Iterator[TensorChunk]:
        tensors = self._tensors(component)
        return self._staging[component].copies(tensors)

    def load(self, component: str, read: Callable[[Slice], TensorChunk]) -> None:
        """Raises RunMismatch when what is read is of another type or shape."""
        for name, tensor in self._tensors(component).items():
            copy_in(tensor, read(whole(name, tensor)))
            if (component, name) == ("optimizer", "step"):
                self._optimizer.set_step(int(tensor))
        if component == "actor":
            self._optimizer.take_parameters()

    def _tensors(self, component: str) -> Mapping[str, torch.Tensor]:
        if component == "actor":
            return self._model.tensors
        if component == "optimizer":
            return self._optimizer.tensors()
        raise WorkerError(f"no component {component!r}", where="engine fsdp", remedy="actor or optimizer")

    def export_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._model.tensors.items():
            yield name, tensor.detach()

    def rng_state(self) -> bytes:
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if self._device.type == "cuda" else [])]
        return b"".join(state.numpy().tobytes() for state in states)

    def platform(self) -> PlatformKey:
        return platform_key(self._context, self._device, self._layout)

    def files(self) -> Mapping[str, bytes]:
        return self._files


def build(config: FsdpConfig, context: BuildContext) -> FsdpEngine:
    return FsdpEngine(config, context)


@dataclass
class DeviceConfig:
    """No options."""


@hookimpl
def register_health_checks(register: Register[HealthCheck]) -> None:
    register("device", DeviceConfig, lambda config, context: DeviceCheck(context.device))


@hookimpl
def register_train_engines(register: Register[TrainEngine]) -> None:
    register("fsdp", FsdpConfig, build)
