"""The smallest real run: the quickstart's model and task, few prompts, several ragged epochs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import verl_core
from blake3 import blake3
from verl_core.api import Trainer

CONFIG = """\
seed: 5
total_steps: {steps}
data:
  train_files: ["{data}"]
  max_prompt_length: 16
  max_response_length: 6
model:
  actor: {{path: "{model}"}}
  reward: {reward}
rollout: {{prompts_per_batch: 4, n: 4}}
training:
  prompts_per_step: 8
  optim: {{lr: 2.0e-4, betas: [0.9, 0.95]}}
  fault_tolerance: {{checkpoint_interval_steps: 2}}
storage: {{keep_checkpoints: 3}}
"""
PROMPTS = 22  # epochs of three steps: two batches, two batches, one whole and one ragged


class Tiny:
    """Model and data made once, configs for any number of steps."""

    def __init__(self, folder: Path) -> None:
        from verl_core.quickstart.model import make_tiny_model  # imports torch
        from verl_core.quickstart.task import write_sort_task

        self.folder = folder
        self.model = make_tiny_model(folder / "model", seed=5)
        self.data = write_sort_task(folder / "data", 5, size=PROMPTS)

    def config(self, steps: int, run: Path | str = "", reward_model: Path | str = "") -> Path:
        """``run`` on S3 needs the plugin."""
        plugins = "plugins: [s3]\n" if str(run).startswith("s3://") else ""
        reward = f'{{name: sequence_classifier, path: "{reward_model}"}}' if reward_model else "{name: exact_match}"
        text = plugins + CONFIG.format(steps=steps, data=self.data, model=self.model, reward=reward)
        path = self.folder / f"steps{steps}-{blake3(text.encode()).hexdigest(4)}.yaml"
        path.write_text(text)
        return path

    def trainer(self, run: Path | str, steps: int, overrides: Sequence[str] = (), **more: object) -> Trainer:
        return verl_core.create_trainer(self.config(steps, run), run_dir=run, overrides=overrides, **more)  # type: ignore[arg-type]
