"""Looking at files in bounded time: a call on a stuck network mount never returns, and cannot be interrupted."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
ANSWER_S = 10.0  # a mount that takes longer is stuck
STUCK = "look at the mount: it is most likely stuck"


def bounded(look: Callable[[], T], timeout_s: float | None = None) -> T:
    """What ``look`` returns or raises. Raises TimeoutError after ``timeout_s`` (``ANSWER_S``); its thread is left."""
    limit = ANSWER_S if timeout_s is None else timeout_s
    done: queue.SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((look(), None))
        except BaseException as error:  # noqa: BLE001 - border: raised where it is waited for
            done.put((None, error))

    threading.Thread(target=work, name="verl-look", daemon=True).start()
    try:
        value, error = done.get(timeout=limit)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # it is there where no error is
