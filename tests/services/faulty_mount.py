"""A mount that hangs, slows down, fills up, goes stale or read-only on command: FUSE stands in for NFS, whose kernel
client is not to be had everywhere. Needs Debian's fuse3, root and /dev/fuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from .process import Server

SCRIPT = Path(__file__).with_name("fuse_fs.py")


class FaultyMount:
    """``path`` is the mount, ``back`` the folder behind it, which always works."""

    def __init__(self, folder: Path) -> None:
        need_fuse()
        self.back, self.path, self._control = folder / "back", folder / "mount", folder / "mode"
        for made in (self.back, self.path):
            made.mkdir(parents=True)
        self.set("ok")
        command = [sys.executable, str(SCRIPT), str(self.back), str(self.path), str(self._control)]
        self.server = Server(command, folder / "log")

    def start(self) -> None:
        self.server.start()
        end = time.monotonic() + 20
        while not self.path.is_mount():
            self.server.check()
            assert time.monotonic() < end, f"not mounted:\n{self.server.log()}"
            time.sleep(0.05)

    def set(self, mode: str) -> None:
        """``ok``, ``hung``, ``slow``, ``full``, ``read_only``, ``stale``, ``io_error``, ``lost_link``,
        ``lost_rename`` (done, and answered by an error)."""
        temp = self._control.with_suffix(".new")
        temp.write_text(mode)
        temp.replace(self._control)

    def close(self) -> None:
        """Killing the server ends all calls that hang in the mount."""
        self.server.kill()
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, timeout=30, check=False)


def need_fuse() -> None:
    """Install Debian's fuse3 where it is missing, or fail: these tests are not skipped."""
    if shutil.which("fusermount3") is None:
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "fuse3"]):
            subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert shutil.which("fusermount3"), "fuse3 is missing and could not be installed: apt-get install fuse3"
    assert Path("/dev/fuse").exists(), "/dev/fuse is missing: give the container the device"
