"""A TCP proxy on loopback with faults that can be changed while it runs: latency, reset, blackhole, truncation."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Mode = Literal["pass", "latency", "reset", "refuse", "blackhole", "drop_reply", "truncate", "trickle"]
_CHUNK = 1 << 16
_GAP_S = 0.01  # between chunks of one answer there is less


@dataclass(slots=True)
class Fault:
    """What happens to connections from now on, also to those that are open.

    - ``pass``; ``latency``: an answer is ``seconds`` late; ``trickle``: it comes byte by byte;
    - ``refuse``: a reset on connecting and on the next request; ``reset``: once ``after`` bytes have gone up;
    - ``blackhole``: bytes are taken and go nowhere;
    - ``drop_reply``: the server gets all, the client a reset instead of the answer;
    - ``truncate``: the answer ends after ``after`` bytes.

    After ``times`` strikes all passes.
    """

    mode: Mode = "pass"
    seconds: float = 0.2
    after: int = 0
    times: int = 1 << 30


@dataclass(slots=True)
class _Told:
    """When the newest piece of the answer went to the client; 0: what comes next answers something new."""

    last: float = 0.0


class FaultProxy:
    """Listens on ``port`` and hands on to ``target`` on loopback."""

    def __init__(self, target: int) -> None:
        self.target, self.fault, self.strikes = target, Fault(), 0
        self.heads: list[bytes] = []  # first chunks of what clients sent
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def set(self, mode: Mode, *, seconds: float = 0.2, after: int = 0, times: int = 1 << 30) -> None:
        self.fault, self.strikes = Fault(mode, seconds, after, times), 0

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _do(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    # --- one connection ----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._strikes("refuse"):
                _reset(writer)
                return
            upstream, down = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                told = _Told()
                await self._both(self._upload(reader, down, writer, told), self._answer(upstream, writer, told))
            finally:
                down.close()
        except OSError:
            _reset(writer)  # the server is gone: the client hears of it
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    @staticmethod
    async def _both(*ways: Coroutine[object, object, None]) -> None:
        """Until one of the two directions ends."""
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _upload(
        self, source: asyncio.StreamReader, goal: asyncio.StreamWriter, back: asyncio.StreamWriter, told: _Told
    ) -> None:
        sent = 0
        while data := await source.read(_CHUNK):
            told.last = 0.0
            if self.fault.mode == "blackhole" and self._strikes("blackhole"):
                await _forever()
            self.heads.append(data[:2000])
            if self._strikes("refuse"):
                _reset(back)
                return
            if self.fault.mode == "reset" and sent + len(data) >= self.fault.after and self._strikes("reset"):
                goal.write(data[: max(0, self.fault.after - sent)])
                await goal.drain()
                _reset(back)
                return
            goal.write(data)
            await goal.drain()
            sent += len(data)

    async def _answer(self, source: asyncio.StreamReader, goal: asyncio.StreamWriter, told: _Told) -> None:
        sent = 0
        while data := await source.read(_CHUNK):
            mode = self.fault.mode
            if mode == "blackhole" and self._strikes(mode):
                await _forever()
            if mode == "drop_reply" and not data.startswith(b"HTTP/1.1 100") and self._strikes(mode):
                _reset(goal)
                return
            if mode == "latency" and time.monotonic() - told.last > _GAP_S:
                await asyncio.sleep(self.fault.seconds)
            if mode == "trickle" and self._strikes(mode):
                await self._trickle(data, goal)
                continue
            if mode == "truncate" and sent + len(data) > self.fault.after and self._strikes(mode):
                goal.write(data[: max(0, self.fault.after - sent)])
                await goal.drain()
                return
            goal.write(data)
            await goal.drain()
            sent, told.last = sent + len(data), time.monotonic()

    async def _trickle(self, data: bytes, goal: asyncio.StreamWriter) -> None:
        for byte in data:
            goal.write(bytes([byte]))
            await goal.drain()
            await asyncio.sleep(self.fault.seconds)

    def _strikes(self, mode: Mode) -> bool:
        if self.fault.mode != mode or self.strikes >= self.fault.times:
            return False
        self.strikes += 1
        return True


async def _forever() -> None:
    await asyncio.Event().wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side gets a reset, not an end."""
    raw = writer.get_extra_info("socket")
    with suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport: asyncio.WriteTransport = writer.transport
    transport.abort()
