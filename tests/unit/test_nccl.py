"""NCCL's variables come from the config, values that it would take silently are refused, an all-reduce is timed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from verl_core.config import load_config
from verl_core.config.devices import Placement
from verl_core.config.findings import Finding
from verl_core.config.nccl import check_nccl, matches, shown, variables
from verl_core.config.nvml import Gpu
from verl_core.config.schema import DistributedConfig, NcclConfig
from verl_core.errors import WorkerError
from verl_core.health import process
from verl_core.health.all_reduce import measure

ALL = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_IB_DISABLE": "1",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_IB_SL": "0",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_RETRY_CNT": "7",
    "NCCL_IB_CUDA_SUPPORT": "0",
}


def findings(
    config: NcclConfig, environ: dict[str, str] | None = None, sysfs: Path = Path("/nowhere")
) -> list[Finding]:
    found = list(check_nccl(config, environ or {}, ["lo", "eth0", "ib0"], sysfs))
    assert all(finding.remedy for finding in found)
    return found


def test_every_variable_is_set_from_the_config_as_nccl_writes_it() -> None:
    text = (
        "{NCCL_SOCKET_IFNAME: eth0, NCCL_IB_DISABLE: true, NCCL_IB_GID_INDEX: 3, NCCL_IB_SL: 0, NCCL_IB_TIMEOUT: 22, "
    )
    text += "NCCL_IB_RETRY_CNT: 7, NCCL_IB_CUDA_SUPPORT: false}"
    config = load_config(None, ["model.actor.path=/m", f"distributed.nccl={text}"]).distributed.nccl
    assert variables(config) == ALL
    assert variables(NcclConfig()) == {}


def test_what_will_be_set_is_shown_with_who_sets_it() -> None:
    environ = {"NCCL_DEBUG": "INFO", "NCCL_IB_SL": "3", "HOME": "/"}
    assert shown(NcclConfig(NCCL_IB_SL=1), environ) == ["NCCL_IB_SL=1 (config)", "NCCL_DEBUG=INFO (environment)"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_IB_SL", 16), ("NCCL_IB_TIMEOUT", 0), ("NCCL_IB_TIMEOUT", 32), ("NCCL_IB_RETRY_CNT", 8),
     ("NCCL_IB_GID_INDEX", -2)],
)  # fmt: skip
def test_values_that_nccl_would_cut_off_or_take_for_infinite_are_errors(name: str, value: int) -> None:
    [finding] = findings(NcclConfig(**{name: value}))  # type: ignore[arg-type]
    assert (finding.key, finding.warning) == (f"distributed.nccl.{name}", False)


def test_good_values_are_fine(tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/mlx5_0").mkdir(parents=True)
    config = NcclConfig("eth,ib", NCCL_IB_DISABLE=False, NCCL_IB_GID_INDEX=3, NCCL_IB_SL=15, NCCL_IB_TIMEOUT=22)
    assert findings(config, {"NCCL_SOCKET_IFNAME": "eth,ib"}, tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [("eth", ["eth0", "eth1"]), ("=eth", []), ("=eth0", ["eth0"]), ("eth0,ib", ["eth0", "ib0"]),
     ("^docker", ["lo", "eth0", "eth1", "ib0"]), ("^=eth0,lo", ["eth1", "ib0", "docker0"]), ("^", [])],
)  # fmt: skip
def test_interfaces_are_matched_as_nccl_does(wanted: str, taken: list[str]) -> None:
    here = ["lo", "eth0", "eth1", "ib0", "docker0"]
    if wanted == "^":  # no name at all: everything is left
        assert [name for name in here if matches(wanted, name)] == here
    else:
        assert [name for name in here if matches(wanted, name)] == taken


def test_an_interface_that_is_not_here_is_an_error_that_lists_those_that_are() -> None:
    [finding] = findings(NcclConfig(NCCL_SOCKET_IFNAME="bond0"))
    assert finding.what == "'bond0' matches no network interface of this host"
    assert finding.remedy == "here: eth0, ib0, lo"
    own = next(iter(psutil.net_if_addrs()))
    assert list(check_nccl(NcclConfig(NCCL_SOCKET_IFNAME=f"={own}"), {})) == []


def test_what_nccl_would_ignore_or_somebody_else_set_is_a_warning() -> None:
    found = findings(NcclConfig(NCCL_IB_DISABLE=False, NCCL_IB_CUDA_SUPPORT=True), {"NCCL_IB_DISABLE": "1"})
    assert [(finding.key.rpartition(".")[2], finding.warning) for finding in found] == [
        ("NCCL_IB_DISABLE", True),
        ("NCCL_IB_DISABLE", True),
        ("NCCL_IB_CUDA_SUPPORT", True),
    ]


# --- this process ----------------------------------------------------------------------------


def test_a_start_sets_variables_gpus_and_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", *ALL):
        monkeypatch.delenv(name, raising=False)
    pinned: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: pinned.append(cpus))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    cards = [Gpu(f"GPU-{n}", n, "Fake", 1, f"{n}", 0, cpus) for n, cpus in enumerate([(0, 1), (2, 9), (3,)])]
    config = DistributedConfig(numa="bind", nccl=NcclConfig(NCCL_IB_SL=2))
    process.apply(config, Placement(("GPU-1",), ("GPU-0",)), cards)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["NCCL_IB_SL"]) == ("GPU-1,GPU-0", "2")
    assert pinned == [{0, 1, 2}]
    process.apply(DistributedConfig(), Placement(("GPU-1",), ("GPU-0",)), cards)
    process.apply(config, Placement(), cards)
    process.apply(config, Placement(("GPU-0",), ("GPU-0",)), [Gpu("GPU-0", 0, "Fake", 1, "0", None, ())])
    assert len(pinned) == 1, "not asked for, nothing bound, or the machine does not say"


# --- the all-reduce --------------------------------------------------------------------------


def test_an_all_reduce_is_timed_over_real_processes() -> None:
    """With gloo, on processors: the same code but for the backend, the device and its synchronisation."""
    found = measure(["0", "1"], {"OMP_NUM_THREADS": "1"}, timeout_s=120, backend="gloo", mib=4)
    assert (found.ranks, found.mib) == (2, 4)
    assert found.seconds > 0
    assert found.bus_gb_per_s == pytest.approx((4 << 20) / found.seconds / 1e9)
    assert "all-reduce of 4 MiB over 2 GPUs" in str(found)


RANK = """
import os, sys, time
number = int(os.environ["CUDA_VISIBLE_DEVICES"])
if number == {failing}: sys.exit("ncclSystemError: no route")
time.sleep({seconds})
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A python that runs ``text`` instead of a rank."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_a_rank_that_fails_is_named_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, RANK.format(failing=1, seconds=0))
    with pytest.raises(WorkerError, match="rank 1 failed: ncclSystemError: no route"):
        measure(["0", "1"], {}, timeout_s=60)


def test_ranks_that_wait_for_each_other_are_ended_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, RANK.format(failing=9, seconds=600))
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"over 3 ranks: no end within 1 s — .*NCCL_SOCKET_IFNAME"):
        measure(["0", "1", "2"], {}, timeout_s=1)
    assert time.monotonic() - begin < 30
    here = psutil.Process()
    assert [child for child in here.children() if "verl_core.health.all_reduce" in " ".join(child.cmdline())] == []
