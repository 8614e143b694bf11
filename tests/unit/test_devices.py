"""GPUs are bound by UUID: whatever a scheduler calls them, every rank finds its own, or the start says why not."""

from __future__ import annotations

import sys
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest
import torch
from verl_core.config import load_config
from verl_core.config.devices import Placement, check_sizes, place
from verl_core.config.findings import Finding
from verl_core.config.nvml import Gpu, Gpus, read_gpus
from verl_core.config.schema import DistributedConfig
from verl_core.errors import ConfigError
from verl_core.types import BuildContext
from verl_core_engines import torch_setup

from tests.support import fake_nvml, light
from tests.support.fake_nvml import uuid


def gpus(count: int = 8, order: list[int] | None = None) -> Gpus:
    """The GPUs of a node; ``order``: the number that each one has today."""
    numbers = order or list(range(count))
    found = [Gpu(uuid(n), numbers[n], "Fake", 80 << 30, f"0000:{0x10 + n:02x}:00.0", None, ()) for n in range(count)]
    return Gpus(tuple(sorted(found, key=lambda gpu: gpu.index)))


def placed(
    config: DistributedConfig, here: Gpus, before: Placement | None = None, visible: str | None = None
) -> Placement:
    found, findings = place(config, here, before, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [finding for finding in findings if not finding.warning] == []
    return found


def errors(config: DistributedConfig, here: Gpus, visible: str | None = None) -> list[str]:
    found, findings = place(config, here, None, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert found == Placement()
    assert all(finding.remedy for finding in findings)
    return [f"{finding.key}: {finding.what}" for finding in findings]


SIX_AND_TWO = DistributedConfig(train_gpus=6, rollout_gpus=2, train_ranks=6, rollout_workers=2)


# --- pools -----------------------------------------------------------------------------------


def test_nothing_is_bound_unless_the_config_says_so() -> None:
    assert place(DistributedConfig(), Gpus(()), None, {}) == (Placement(), [])
    assert Placement().environment() == {}
    assert Placement().device("train", 0) == ""


def test_training_and_rollouts_have_gpus_of_their_own() -> None:
    found = placed(SIX_AND_TWO, gpus())
    assert found.train == tuple(map(uuid, range(6)))
    assert found.rollout == (uuid(6), uuid(7))
    assert found.environment() == {"CUDA_VISIBLE_DEVICES": ",".join(map(uuid, range(8)))}
    assert [found.device("train", n) for n in range(6)] == [f"cuda:{n}" for n in range(6)]
    assert [found.device("rollout", n) for n in range(3)] == ["cuda:6", "cuda:7", "cuda:6"]


def test_named_gpus_are_taken_in_the_order_of_their_names() -> None:
    names = [uuid(n) for n in (7, 1, 4)]
    found = placed(DistributedConfig(gpu_uuids=names, rollout_gpus=1), gpus())
    assert (found.train, found.rollout) == ((uuid(7), uuid(1)), (uuid(4),))
    assert found.device("train", 0) == "cuda:0"


def test_without_a_pool_of_their_own_rollouts_share_the_gpus_of_training() -> None:
    found = placed(DistributedConfig(train_gpus=2), gpus())
    assert found.train == found.rollout == (uuid(0), uuid(1))
    assert found.uuids == (uuid(0), uuid(1))


@pytest.mark.parametrize("order", [list(p) for p in permutations(range(4))])
def test_e10_a_scheduler_that_renumbers_the_devices_moves_no_rank(order: list[int]) -> None:
    config = DistributedConfig(train_gpus=3, rollout_gpus=1)
    first = placed(config, gpus(4))
    assert placed(config, gpus(4, order), before=first) == first
    assert placed(config, gpus(4, order)) == first, "numbers decide nothing"
    named = DistributedConfig(train_gpus=3, rollout_gpus=1, gpu_uuids=[uuid(n) for n in (2, 0, 3, 1)])
    assert placed(named, gpus(4, order)).train == (uuid(2), uuid(0), uuid(3))


def test_e10_on_a_larger_node_the_run_keeps_its_gpus() -> None:
    config = DistributedConfig(train_gpus=2)
    before = Placement((uuid(5), uuid(3)), (uuid(5), uuid(3)))
    assert placed(config, gpus(8), before) == before


def test_a_gpu_that_is_gone_is_replaced_in_its_place_and_said_so() -> None:
    before = placed(SIX_AND_TWO, gpus())
    here = Gpus(tuple(gpu for gpu in gpus(9).found if gpu.uuid != uuid(2)))
    found, [finding] = place(SIX_AND_TWO, here, before, {})
    assert found.train == (uuid(0), uuid(1), uuid(8), uuid(3), uuid(4), uuid(5))
    assert (finding.warning, finding.what) == (True, f"{uuid(2)} of the last start is gone and replaced")


def test_other_pools_than_before_are_chosen_anew() -> None:
    assert placed(DistributedConfig(train_gpus=3), gpus(), before=Placement((uuid(7),), (uuid(7),))).train == tuple(
        map(uuid, range(3))
    )


def test_only_what_the_scheduler_gave_is_chosen() -> None:
    config = DistributedConfig(train_gpus=2)
    assert placed(config, gpus(), visible="6,4").train == (uuid(4), uuid(6))
    assert placed(config, gpus(), visible=f"{uuid(3)},{uuid(1)[:12]}").train == (uuid(1), uuid(3))
    assert "2 for training and 0 for rollouts, but 1 GPUs are visible here" in errors(config, gpus(), visible="5")[0]
    assert "but 0 GPUs are visible here" in errors(config, gpus(), visible="")[0]


# --- what is refused -------------------------------------------------------------------------


def test_a_gpu_that_is_not_here_is_named_with_the_nearest() -> None:
    wrong = uuid(3)[:-1] + "x"
    config = DistributedConfig(gpu_uuids=[uuid(0), wrong])
    _, [finding] = place(config, gpus(), None, {})
    assert finding == Finding(
        "distributed.gpu_uuids",
        f"{wrong} is not here; here: {', '.join(map(uuid, range(8)))}",
        f"did you mean {uuid(3)!r}?",
    )


def test_a_gpu_that_is_named_twice_and_a_wrong_number_of_names_are_refused() -> None:
    assert errors(DistributedConfig(gpu_uuids=[uuid(0), uuid(0)]), gpus()) == [
        f"distributed.gpu_uuids: {uuid(0)} is named twice"
    ]
    config = DistributedConfig(gpu_uuids=[uuid(0), uuid(1)], train_gpus=2, rollout_gpus=1)
    assert errors(config, gpus()) == [
        "distributed.gpu_uuids: 2 UUIDs for 2 + 1 GPUs (distributed.train_gpus + distributed.rollout_gpus)"
    ]


def test_pools_without_a_driver_or_without_training_are_refused() -> None:
    trouble = Gpus((), "the NVIDIA driver does not answer", "is there a GPU?")
    assert errors(DistributedConfig(train_gpus=1), trouble) == [
        "distributed.train_gpus: the NVIDIA driver does not answer"
    ]
    assert errors(DistributedConfig(train_gpus=1), Gpus(()))[0].startswith("distributed.train_gpus: no GPU is here")
    assert errors(DistributedConfig(rollout_gpus=2), gpus()) == ["distributed.train_gpus: no GPU is left for training"]


# --- sizes -----------------------------------------------------------------------------------


def sizes(*overrides: str) -> list[tuple[str, bool]]:
    found = list(check_sizes(load_config(None, ["model.actor.path=/m", *overrides])))
    assert all(finding.remedy for finding in found)
    return [(finding.key.rpartition(".")[2], finding.warning) for finding in found]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["distributed.train_gpus=6", "distributed.rollout_gpus=2", "distributed.train_ranks=6"], []),
        (["distributed.train_gpus=1", "training.device=cpu"], [("device", True)]),
        (["distributed.train_gpus=6", "distributed.train_ranks=8"], [("train_ranks", False)]),
        (["distributed.train_gpus=6", "distributed.train_ranks=4"], [("train_ranks", True)]),
        (["distributed.train_ranks=6", "training.tensor_model_parallel_size=4"], [("train_ranks", False)]),
        (["distributed.train_ranks=8", "training.tensor_model_parallel_size=2",
          "training.pipeline_model_parallel_size=4"], []),
        (["distributed.train_gpus=1", "distributed.rollout_gpus=2", "distributed.rollout_workers=3"],
         [("rollout_workers", False)]),
        (["distributed.train_gpus=1", "distributed.rollout_gpus=2", "rollout.tensor_model_parallel_size=4"],
         [("rollout_workers", False)]),
        (["distributed.train_gpus=1", "distributed.rollout_gpus=4", "rollout.tensor_model_parallel_size=4"], []),
        (["distributed.train_gpus=1", "rollout.gpu_memory_utilization=0.6"], [("train_memory_fraction", True)]),
        (["distributed.train_gpus=1", "rollout.gpu_memory_utilization=0.6", "distributed.train_memory_fraction=0.5"],
         [("train_memory_fraction", False)]),
        (["distributed.train_gpus=1", "rollout.gpu_memory_utilization=0.6", "distributed.train_memory_fraction=0.4"],
         []),
        (["distributed.train_gpus=1", "distributed.rollout_gpus=1", "rollout.gpu_memory_utilization=0.9"], []),
    ],
)  # fmt: skip
def test_parallel_sizes_fit_the_pools_and_memory_pools_do_not_overlap(
    overrides: list[str], expected: list[tuple[str, bool]]
) -> None:
    assert sizes(*overrides) == expected


# --- the border to the driver ----------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml)
    return monkeypatch


def test_gpus_are_read_with_what_the_machine_says_of_their_places(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver.setenv("FAKE_NVML", fake_nvml.node(2))
    device = tmp_path / "bus/pci/devices/0000:11:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("8-10,12\n")
    first, second = read_gpus(tmp_path).found
    assert (first.uuid, first.index, first.numa_node, first.cpus) == (uuid(0), 0, None, ())
    assert (second.uuid, second.index, second.numa_node, second.cpus) == (uuid(1), 1, 1, (8, 9, 10, 12))
    assert (second.name, second.memory_bytes, second.bus_id) == ("NVIDIA Fake", 80 << 30, "00000000:11:00.0")
    assert fake_nvml._begun == 0, "the library is given back"


def test_a_renumbered_node_is_read_under_its_new_numbers(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_NVML", fake_nvml.renumbered(fake_nvml.node(4), [2, 0, 3, 1]))
    here = read_gpus()
    assert [gpu.uuid for gpu in here.found] == [uuid(n) for n in (2, 0, 3, 1)]
    assert placed(DistributedConfig(train_gpus=2), here).train == (uuid(0), uuid(1))


def test_a_lost_gpu_a_silent_driver_and_a_missing_package_say_what_to_do(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("FAKE_NVML", '[{"uuid": "GPU-1", "bus": "00000000:10:00.0", "lost": true}]')
    lost = read_gpus()
    assert (lost.found, lost.trouble) == ((), "a GPU does not answer: GPU is lost")
    driver.setenv("FAKE_NVML", "")
    silent = read_gpus()
    assert "driver does not answer: NVML Shared Library Not Found" in silent.trouble
    driver.setitem(sys.modules, "pynvml", None)
    missing = read_gpus()
    assert missing.trouble == "nvidia-ml-py is not installed"
    assert all(one.remedy for one in (lost, silent, missing))
    assert fake_nvml._begun == 0


@pytest.mark.parametrize("text", ["", "-1", "x"])
def test_a_machine_that_does_not_say_where_a_gpu_is_is_fine(
    driver: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    driver.setenv("FAKE_NVML", fake_nvml.node(1))
    device = tmp_path / "bus/pci/devices/0000:10:00.0"
    device.mkdir(parents=True)
    for name in ("numa_node", "local_cpulist"):
        (device / name).write_text(text)
    [gpu] = read_gpus(tmp_path).found
    assert (gpu.numa_node, gpu.cpus) == (None, ())


# --- the engines -----------------------------------------------------------------------------


def test_an_engine_takes_the_gpu_that_it_is_given_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert torch_setup._device("cuda:1") == torch.device("cuda", 1)
    assert torch_setup._device("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match="cuda:2 is bound, but this process sees 2 GPUs"):
        torch_setup._device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, said in (("cuda:0", "no CUDA device"), ("tpu", "unknown device 'tpu'")):
        with pytest.raises(ConfigError, match=said):
            torch_setup._device(name)


@pytest.mark.parametrize(("device", "given"), [("auto", ["cuda:0", "cuda:1"]), ("cpu", ["cpu", "cpu"])])
def test_each_role_is_built_for_the_gpu_of_its_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, given: list[str]
) -> None:
    seen: dict[str, str] = {}

    class Trainer(light.LightTrainer):
        def __init__(self, config: light.LightConfig, context: BuildContext) -> None:
            super().__init__(config, context)
            seen["train"] = context.device

    class Rollout(light.LightRollout):
        def __init__(self, config: light.LightConfig, context: BuildContext) -> None:
            super().__init__(config, context)
            seen["rollout"] = context.device

    pools = Placement((uuid(3),), (uuid(5),))
    monkeypatch.setattr(light, "LightInputs", partial(light.LightInputs, placement=pools))
    light.run(tmp_path / "run", 1, changes=[f"training.device={device}"], trainer=Trainer, rollout=Rollout)
    assert [seen["train"], seen["rollout"]] == given
