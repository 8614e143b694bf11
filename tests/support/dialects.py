"""Configs as they stand in articles and in verl's examples, and their translation."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf
from verl_core.config.compose import parse_yaml
from verl_core.config.translate import Translation, translate

VERL_FILE = """\
data:
  train_files: [/data/train.parquet, /data/more.parquet]
  val_files: /data/test.parquet
  train_batch_size: 64
  micro_batch_size_per_gpu: 4
  max_prompt_length: 512
  max_response_length: 1024
  prompt_key: prompt
actor_rollout_ref:
  model: {path: /models/actor}
  actor:
    ppo_mini_batch_size: 64
    ppo_micro_batch_size_per_gpu: 8
    ppo_max_token_len_per_gpu: 16384
    optim: {lr: 1e-6}
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    use_kl_loss: false
    kl_loss_coef: 0.001
  rollout:
    name: hf
    n: 16
    temperature: 0.9
    tensor_model_parallel_size: 1
    gpu_memory_utilization: 0.6
    max_num_batched_tokens: 8192
    max_num_seqs: 1024
critic:
  optim: {lr: 1e-5}
  ppo_max_token_len_per_gpu: 32768
algorithm:
  adv_estimator: grpo
  kl_ctrl: {kl_coef: 0.001}
trainer:
  total_epochs: 3
  total_training_steps: 200
  save_freq: 20
  test_freq: 5
  resume_mode: resume_path
  resume_from_path: /ckpt/global_step_100
  default_local_dir: checkpoints/${trainer.project_name}/${trainer.experiment_name}
  n_gpus_per_node: 1
  nnodes: 1
  logger: [console]
  project_name: gsm8k
  experiment_name: first
  gpu_uuids: [GPU-1]
"""
ARTICLE_FILE = """\
train:
  total_steps: 10000
  save_interval: 1000
  async_checkpoint: true
  resume_from: null
  adaptive_checkpoint:
    enabled: true
    intervals: [{steps: 0, interval: 500}, {steps: 5000, interval: 1000}, {steps: 20000, interval: 2000}]
model:
  actor:  {name_or_path: Qwen/Qwen2-1.5B, use_flash_attn: true}
  reward: {name_or_path: meta-llama/Llama-3-8B-Instruct, dtype: bfloat16}
data: {dataset_name: trl-lib/ultrafeedback_binarized, split: train, max_length: 2048}
distributed: {world_size: 4, backend: nccl}
"""


def translated(text: str, installed: tuple[str, ...] = ("hf", "fsdp", "log")) -> Translation:
    return translate(*parse_yaml(text, "f.yaml"), installed=installed)


def keys(done: Translation) -> dict[str, Any]:
    return {key: OmegaConf.select(OmegaConf.create(done.tree), key) for key in done.places}
