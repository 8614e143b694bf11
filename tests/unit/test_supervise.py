"""``--max-restarts``: what is worth a restart, what is not, and that it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from verl_core.cli.supervise import supervised
from verl_core.errors import ConfigError, DamagedError, RunBusy, SafeModeError, StorageFull, VerlError


def lives(tmp_path: Path, end: Callable[[int], None], restarts: int = 3) -> tuple[int, int]:
    """How often a child was started, and the exit code in the end; ``end`` gets the number of the life, from 1."""

    def once() -> None:
        (tmp_path / f"life {len(list(tmp_path.iterdir()))}").touch()
        end(len(list(tmp_path.iterdir())))

    code = 0
    try:
        supervised(once, restarts)
    except typer.Exit as left:
        code = left.exit_code
    return len(list(tmp_path.iterdir())), code


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raising(error: VerlError) -> Callable[[int], None]:
    def end(life: int) -> None:
        raise error

    return end


@pytest.mark.parametrize("error", [SafeModeError("x"), DamagedError("x"), RunBusy("x"), ConfigError("x")])
def test_what_a_restart_cannot_mend_is_not_restarted(tmp_path: Path, error: VerlError) -> None:
    assert lives(tmp_path, raising(error)) == (1, error.exit_code)


def test_a_killed_controller_is_started_again_until_it_is_done(tmp_path: Path) -> None:
    assert lives(tmp_path, lambda life: die() if life < 3 else None) == (3, 0)


def test_an_error_of_the_machine_is_worth_a_restart(tmp_path: Path) -> None:
    assert lives(tmp_path, raising(StorageFull("x"))) == (4, 1)


def test_restarts_end_when_their_number_is_spent(tmp_path: Path) -> None:
    assert lives(tmp_path, lambda life: die(), restarts=2) == (3, 1)
