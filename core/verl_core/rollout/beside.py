"""A read that is under way while its caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


def beside(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Begin to read; the result waits, and gives what was read or raises what the read raised.

    Nobody needs to wait for it: the thread ends with the read, which is bounded, and does not keep the process.
    """
    found: list[bytes] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(read())
        except BaseException as error:  # noqa: BLE001 - border: handed to whoever waits
            failed.append(error)

    thread = threading.Thread(target=work, name="verl-read-back", daemon=True)
    thread.start()

    def result() -> bytes:
        thread.join()
        if failed:
            raise failed[0]
        return found[0]

    return result


def at_once(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """The same without a thread, for tests that name each operation."""
    found = read()
    return lambda: found
