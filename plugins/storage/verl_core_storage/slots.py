"""Upload slots of a node: at most so many uploads at once by all processes of one user, whatever run they belong to.

A slot is a file with an advisory lock, which dies with its process. The folder is on the local disk of the node.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from verl_core.errors import StorageDenied

from . import posix
from .deadline import Call, Deadline

POLL_S = 0.002
_SLOWEST_S = 0.05
_PATIENCE = 10  # a call waits for a slot for at most this many times its timeout


def node_folder() -> str:
    """Where this user's slots are on this node."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"verl-core-uploads-{os.getuid()}")


class Slots:
    """``count`` slots below ``folder``."""

    def __init__(self, count: int, folder: str | None = None) -> None:
        self.count, self._folder = count, folder or node_folder()
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if os.stat(self._folder).st_uid != os.getuid():
            raise StorageDenied("the folder of upload slots belongs to somebody else", where=self._folder)

    @asynccontextmanager
    async def held(self, call: Call, deadline: Deadline) -> AsyncIterator[None]:
        """Hold a slot. The time that it takes to get one is not the store's: the deadline moves with it."""
        release = await self._take(call, deadline)
        try:
            yield
        finally:
            release()

    async def _take(self, call: Call, deadline: Deadline) -> Callable[[], None]:
        patience_s, pause_s = deadline.limits.timeout_s * _PATIENCE, POLL_S
        while True:
            for number in random.sample(range(self.count), self.count):
                release = posix.lock(os.path.join(self._folder, f"slot-{number}"))
                if release is not None:
                    return release
            if patience_s <= 0:
                raise call.late(deadline.limits.timeout_s * _PATIENCE)
            pause = pause_s * (0.5 + random.random())
            await asyncio.sleep(pause)
            patience_s -= pause
            pause_s = min(2 * pause_s, _SLOWEST_S)
            deadline.extend(pause)
            deadline.progress()
