"""What a person sees of a run: a live table on a terminal, one plain line a step elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from ..types import CheckpointRef, Decision, Fault, RunFinished, StepResult

WINDOW = 20  # steps of the reward that is shown


class Progress:
    """A listener to the observer hooks; ``state`` tells the machine's. On Ctrl-C it says how to go on."""

    def __init__(self, place: str, last_step: int, state: Callable[[], str]) -> None:
        self._place, self._last, self._state = place, last_step, state
        self._console = Console(highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn()
        )
        self._task = self._bar.add_task("", total=last_step)
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._result: StepResult | None = None
        self._saved: tuple[int, float] | None = None
        self._step_began = time.monotonic()
        self._step_s = 0.0
        self._faults = 0
        self._resting = "starting"
        terminal = self._console.is_terminal
        self._live = Live(console=self._console, get_renderable=self._render) if terminal else None

    def listen(self, on: Callable[[str, Callable[..., object]], None]) -> None:
        on("run_started", self._started)
        on("step_finished", self._step)
        on("checkpoint_committed", self._checkpoint)
        on("fault_detected", self._fault)
        on("recovery_finished", self._recovered)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if isinstance(error, KeyboardInterrupt):
            self._console.print(f"interrupted; to go on: verl-core run --run-dir {self._place}", soft_wrap=True)

    def finished(self, result: RunFinished) -> None:
        kept = [reward for reward in result.rewards if reward is not None]
        first, last = kept[:10], kept[-10:]
        mean = (
            f", reward {sum(first) / len(first):.3f} → {sum(last) / len(last):.3f} (first and last ten)" if kept else ""
        )
        self._resting = how = "done" if result.state == "DONE" else "stopped"
        self._print(f"{how} at step {result.step}{mean}")
        self._print(f"policy {result.policy_digest}")
        self._print(f"to check every hash and that each prompt was used once: verl-core verify {self._place}")

    def _started(self, run_id: str, attempt: int, step: int) -> None:
        begun = f"run {run_id}, attempt {attempt}, " + (f"goes on after step {step}" if step else "from the base model")
        self._print(begun)
        self._bar.update(self._task, completed=step)
        self._step_began = time.monotonic()

    def _step(self, result: StepResult) -> None:
        now = time.monotonic()
        self._step_s, self._step_began = now - self._step_began, now
        self._result = result
        self._rewards.append(result.reward_mean)
        self._bar.update(self._task, completed=result.step)
        if self._live is None:
            m = result.metrics
            self._print(
                f"step {result.step}/{self._last}  reward {result.reward_mean:.3f}  loss {m.loss:+.4f}  "
                f"grad {m.grad_norm:.3f}  {m.tokens / max(self._step_s, 1e-9):,.0f} tok/s  {self._step_s:.2f} s"
            )

    def _checkpoint(self, ref: CheckpointRef) -> None:
        self._saved = (ref.step, time.monotonic())

    def _fault(self, fault: Fault) -> None:
        self._faults += 1
        self._print(f"fault: {fault.kind} of {fault.scope}: {fault.evidence}")

    def _recovered(self, fault: Fault, decision: Decision, seconds: float) -> None:
        self._print(f"recovered by {decision.action} within {seconds:.1f} s: {fault.kind} of {fault.scope}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _render(self) -> Group:
        self._bar.update(self._task, description=self._state() or self._resting)
        table = Table.grid(padding=(0, 2))
        if self._result is not None:
            m = self._result.metrics
            mean = sum(self._rewards) / len(self._rewards)
            table.add_row("reward", f"{self._result.reward_mean:.3f}", f"mean of {len(self._rewards)}", f"{mean:.3f}")
            table.add_row("loss", f"{m.loss:+.4f}", "grad norm", f"{m.grad_norm:.3f}")
            speed = m.tokens / max(self._step_s, 1e-9)
            table.add_row("tokens/s", f"{speed:,.0f}", "s per step", f"{self._step_s:.2f}")
        saved = f"step {self._saved[0]}, {time.monotonic() - self._saved[1]:.0f} s ago" if self._saved else "none yet"
        table.add_row("checkpoint", saved, "faults", str(self._faults))
        return Group(self._bar, table)
