"""A server in a process of its own on loopback: started, waited for, frozen, woken, and ended by its process id."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

READY_S = 60.0
_candidates = itertools.count(os.getpid() * 37)  # each is given out once


def free_ports(count: int) -> list[int]:
    """Ports below the range of outgoing connections (some servers add 10,000 to a port), free now on loopback."""
    found: list[int] = []
    while len(found) < count:
        port = 11000 + next(_candidates) % 10000
        if all(_is_free(p) for p in (port, port + 10000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def program(name: str) -> str:
    """A program that a package of the development requirements installed beside this interpreter."""
    path = Path(sys.executable).parent / name
    assert path.exists(), f"{path} is missing: pip install -r requirements-dev.txt"
    return str(path)


class Server:
    """One process. ``kill`` is SIGKILL: nothing that it was doing is finished."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.command, self.folder, self.env = list(command), folder, {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def wait_for_port(self, port: int) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            with socket.socket() as client:
                client.settimeout(1)
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.check()
            time.sleep(0.05)
        raise TimeoutError(f"port {port} is not open after {READY_S} s:\n{self.log()}")

    def check(self) -> None:
        assert self._process is not None, "not started"
        assert self._process.poll() is None, f"the server ended by itself:\n{self.log()}"

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-3000:]

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + 10
        while psutil.Process(self.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < end:
            time.sleep(0.01)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)
