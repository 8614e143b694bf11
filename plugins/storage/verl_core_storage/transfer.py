"""Requests of one bucket, bounded and retried, and what is made of them: whole uploads and downloads.

Calls come in on the caller's thread and run on fsspec's event loop, so that many requests share one connection pool.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import TypeVar

from fsspec.asyn import get_loop
from verl_core.errors import StorageError
from verl_core.types import Bytes

from .attempts import Attempts, carry
from .deadline import Call, Deadline, Waiter
from .objects import ObjectClient, Piece, part_size
from .slots import Slots

T = TypeVar("T")
_CLEAN_UP_S = 5.0
WINDOW = 4  # parts of one upload or download that are under way at once


class Transfer:
    def __init__(self, client: ObjectClient, waiter: Waiter, slots: Slots, part_mib: int) -> None:
        self.client, self._waiter, self._slots, self._part_mib = client, waiter, slots, part_mib
        self._attempts = Attempts(client.raw, client.explain)

    # --- one request -------------------------------------------------------------------------

    def work(self, work: Coroutine[object, object, T], call: Call, deadline: Deadline) -> T:
        """The result of several requests, from the caller's thread."""
        return self.wait(self._begin(work), call, deadline)

    def run(self, request: Callable[[], Awaitable[T]], call: Call, deadline: Deadline, size: int = 0) -> T:
        """One request with its retries, from the caller's thread."""
        return self.work(self.again(request, call, deadline, size), call, deadline)

    async def again(self, request: Callable[[], Awaitable[T]], call: Call, deadline: Deadline, size: int = 0) -> T:
        return await self._attempts.run(request, call, deadline, size=size)

    def wait(self, future: futures.Future[T], call: Call, deadline: Deadline) -> T:
        return self._waiter.wait(future, call, deadline)

    def deadline(self) -> Deadline:
        return Deadline(self._waiter.limits)

    @staticmethod
    def _begin(work: Coroutine[object, object, T]) -> futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, get_loop())

    # --- upload ------------------------------------------------------------------------------

    async def put(self, key: str, data: bytes, call: Call, deadline: Deadline, *, if_absent: bool) -> None:
        """One request. A create whose answer was lost knows its object again by its mark, or by equal bytes."""
        mark = secrets.token_hex(8) if if_absent else ""

        async def landed(unclear: bool) -> bool | None:
            head = await self.client.head(key)
            if head is None or head.mark or not unclear or head.size != len(data):
                return True if head is not None and head.mark == mark else None
            there = await self.client.get(key, 0, len(data) + 1)
            return True if (there.data if there else b"") == data else None

        async def request() -> bool:
            await self.client.put(key, data, if_absent=if_absent, mark=mark)
            return True

        async with self._slots.held(call, deadline):
            await self._attempts.run(request, call, deadline, size=len(data), landed=landed if if_absent else None)

    def upload(
        self, key: str, data: Bytes | Iterable[Bytes], call: Call, *, if_absent: bool, in_parts: bool = True
    ) -> int:
        """Write an object: small ones by one request, others by a multipart upload, unless ``in_parts`` is False."""
        deadline = self.deadline()
        parts = _parts(data, self._part_mib, deadline)
        first = next(parts, b"")
        second = next(parts, None)
        if second is not None and in_parts:
            return self._multipart(key, _chain(first, second, parts), call, deadline, if_absent=if_absent)
        whole = first if second is None else b"".join((first, second, *parts))
        if len(whole) > self.client.max_single_put:
            remedy = "write it in smaller objects, or use a store with conditional multipart uploads"
            what = f"{call.operation}: {len(whole)} bytes are too many for one request"
            raise StorageError(what, where=call.where, remedy=remedy)
        self.work(self.put(key, whole, call, deadline, if_absent=if_absent), call, deadline)
        return len(whole)

    def _multipart(self, key: str, parts: Iterator[bytes], call: Call, deadline: Deadline, *, if_absent: bool) -> int:
        mark = secrets.token_hex(8) if if_absent else ""
        upload = self.run(lambda: self.client.begin_upload(key, mark), call, deadline)
        pending: deque[futures.Future[str]] = deque()
        tags: list[str] = []
        size = 0
        try:
            for number, part in enumerate(parts, 1):
                if len(pending) == WINDOW:
                    tags.append(self.wait(pending.popleft(), call, deadline))
                pending.append(self._begin(self._part(key, upload, number, part, call, deadline)))
                size += len(part)
            while pending:
                tags.append(self.wait(pending.popleft(), call, deadline))
            self.work(self._finish(key, upload, tags, mark, call, deadline), call, deadline)
        except BaseException:
            for future in pending:
                future.cancel()
            self._give_up(key, upload, call)
            raise
        return size

    async def _part(self, key: str, upload: str, number: int, data: bytes, call: Call, deadline: Deadline) -> str:
        async with self._slots.held(call, deadline):
            return await self.again(
                lambda: self.client.put_part(key, upload, number, data), call, deadline, size=len(data)
            )

    async def _finish(self, key: str, upload: str, tags: list[str], mark: str, call: Call, deadline: Deadline) -> None:
        async def request() -> bool:
            await self.client.finish_upload(key, upload, tags, if_absent=bool(mark))
            return True

        async def landed(unclear: bool) -> bool | None:
            """Nobody else finishes this upload: if it is gone, it was finished."""
            head = await self.client.head(key)
            if head is None or head.mark or not unclear:
                return True if head is not None and mark and head.mark == mark else None
            return None if any(u.id == upload for u in await self.client.uploads(key)) else True

        await self._attempts.run(request, call, deadline, landed=landed)

    def _give_up(self, key: str, upload: str, call: Call) -> None:
        """Best effort: what stays behind is swept by a later start."""
        future = self._begin(self.client.abort_upload(key, upload))
        with suppress(futures.TimeoutError, StorageError, *self.client.raw):
            future.result(min(_CLEAN_UP_S, self._waiter.limits.timeout_s))
        future.cancel()

    # --- download ----------------------------------------------------------------------------

    def download(self, key: str, start: int, end: int | None, call: Call) -> bytes:
        """Bytes of one version of the object; large ranges by several requests at once."""
        deadline = self.deadline()
        return self.work(self._download(key, start, end, call, deadline), call, deadline)

    async def _download(self, key: str, start: int, end: int | None, call: Call, deadline: Deadline) -> bytes:
        step = part_size(self._part_mib, 1)
        room, arrives = asyncio.Semaphore(WINDOW), partial(carry, deadline)

        async def piece(begin: int, stop: int, tag: str) -> Piece | None:
            async with room:
                return await self.again(lambda: self.client.get(key, begin, stop, tag, arrives), call, deadline)

        first = await piece(start, start + step if end is None else min(end, start + step), "")
        if first is None:
            return b""
        stop = first.size if end is None else min(end, first.size)
        ranges = [(begin, min(begin + step, stop)) for begin in range(start + len(first.data), stop, step)]
        if not ranges:
            return first.data
        tasks = [asyncio.ensure_future(piece(begin, until, first.tag)) for begin, until in ranges]
        try:
            found = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return b"".join((first.data, *(part.data for part in found if part is not None)))


def _chain(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


def _parts(data: Bytes | Iterable[Bytes], part_mib: int, deadline: Deadline) -> Iterator[bytes]:
    """The data in parts of the size that uploads want; each moves the deadline. A small whole is not copied."""
    if isinstance(data, bytes) and len(data) <= part_size(part_mib, 1):
        deadline.carry(len(data))
        yield data
        return
    number, buffer = 1, bytearray()
    for piece in (data,) if isinstance(data, bytes | bytearray | memoryview) else _timed(data, deadline):
        view = memoryview(piece).cast("B")
        while view:
            size = part_size(part_mib, number)
            taken = view[: size - len(buffer)]
            view = view[len(taken) :]
            if len(buffer) + len(taken) == size:
                deadline.carry(size)
                yield bytes(buffer) + taken if buffer else bytes(taken)
                number, buffer = number + 1, bytearray()
            else:
                buffer += taken
    if buffer:
        deadline.carry(len(buffer))
        yield bytes(buffer)


def _timed(data: Iterable[Bytes], deadline: Deadline) -> Iterator[Bytes]:
    """The time that the caller's own data takes is not the store's."""
    begin = time.monotonic()
    for piece in data:
        deadline.extend(time.monotonic() - begin)
        deadline.progress()
        yield piece
        begin = time.monotonic()
