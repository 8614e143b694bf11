"""What a bucket really does, tried out on objects of our own: some stores accept conditions and ignore them."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from verl_core.errors import ConfigError, ObjectExists, StorageError

from .attempts import AGAIN
from .deadline import Call, Deadline
from .objects import CREATED_BY_PROBE, ObjectConfig
from .transfer import Transfer

T = TypeVar("T")
RACERS = 2
DEAD_AFTER_S = 24 * 3600.0  # multipart uploads that are older belong to nobody: no call lives so long


@dataclass(frozen=True, slots=True)
class Found:
    conditional_put: bool
    conditional_multipart: bool
    consistent_list: bool
    encryption: str
    versioned: bool


_known: dict[str, Found] = {}
_mutex = threading.Lock()


def _renew() -> None:
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew)  # a thread of the parent may have held it


class Probes:
    """Probes one prefix. Needs the rights to list, read, write and delete there, as a run does."""

    def __init__(self, transfer: Transfer, config: ObjectConfig, call: Call, prefix: str) -> None:
        self._transfer, self._client, self._config, self._call = transfer, transfer.client, config, call
        self._prefix = prefix

    def found(self, place: str) -> Found:
        """The result for ``place``, found once a process. Raises the ``StorageError`` of what cannot be done there,
        and ``ConfigError`` when the bucket is not as the config wants it."""
        place += f" {self._config.encryption} {self._config.kms_key_id} {self._config.versioning}"
        with _mutex:
            if place not in _known:
                deadline = self._transfer.deadline()
                _known[place] = self._transfer.work(self._probe(deadline), self._call, deadline)
            return _known[place]

    async def _probe(self, deadline: Deadline) -> Found:
        folder = f"{self._prefix}{CREATED_BY_PROBE}{secrets.token_hex(8)}/"
        names = [f"{folder}{name}" for name in ("create", "replace")]
        try:
            versioned = await self._versioned(deadline)
            winner = await self._race(names[0], deadline)
            multipart = winner is not None and await self._multipart(names[0], winner, deadline)
            listed = await self._listing(folder, names[1], deadline)
            head = await self._again(lambda: self._client.head(names[1]), deadline)
            encryption = head.encryption if head is not None else ""
        except StorageError:
            with suppress(StorageError):
                await self._again(lambda: self._client.delete(names), deadline)
            raise
        await self._again(lambda: self._client.delete(names), deadline)
        listed = listed and not (await self._again(lambda: self._client.page(folder, ""), deadline)).found
        await self._sweep(deadline)
        self._check(encryption, versioned=versioned)
        return Found(winner is not None, multipart, listed, encryption, versioned)

    async def _again(self, request: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        return await self._transfer.again(request, self._call, deadline)

    async def _race(self, key: str, deadline: Deadline) -> bytes | None:
        """Several create one name at once, then one more: the content of the one that won, None for another outcome."""
        contents = [secrets.token_bytes(16) for _ in range(RACERS)]
        won = await asyncio.gather(*(self._creates(key, content, deadline) for content in contents))
        late = await self._creates(key, secrets.token_bytes(16), deadline)
        there = await self._again(lambda: self._client.get(key, 0, 100), deadline)
        winners = [content for content, wins in zip(contents, won, strict=True) if wins]
        if late or len(winners) != 1 or there is None or there.data != winners[0]:
            return None
        return winners[0]

    async def _creates(self, key: str, content: bytes, deadline: Deadline) -> bool:
        try:
            await self._transfer.put(key, content, self._call, deadline, if_absent=True)
        except ObjectExists:
            return False
        return True

    async def _multipart(self, key: str, content: bytes, deadline: Deadline) -> bool:
        """Whether a multipart upload onto a name that is taken is refused."""
        try:
            upload = await self._again(lambda: self._client.begin_upload(key), deadline)
            tag = await self._again(lambda: self._client.put_part(key, upload, 1, b"x" * 16), deadline)
            refused = False
            try:
                await self._again(lambda: self._client.finish_upload(key, upload, [tag], if_absent=True), deadline)
            except ObjectExists:
                refused = True
                await self._again(lambda: self._client.abort_upload(key, upload), deadline)
            there = await self._again(lambda: self._client.get(key, 0, 100), deadline)
        except AGAIN:
            raise
        except StorageError:
            return False  # it has no multipart uploads, or not in this way
        return refused and there is not None and there.data == content

    async def _listing(self, folder: str, key: str, deadline: Deadline) -> bool:
        """Whether listings and reads follow a write and a replacement at once."""
        for content in (b"old", b"newer"):
            await self._transfer.put(key, content, self._call, deadline, if_absent=False)
            page = await self._again(lambda: self._client.page(folder, ""), deadline)
            piece = await self._again(lambda: self._client.get(key, 0, 100), deadline)
            sizes = [stat.size for stat in page.found if stat.path == key]
            if sizes != [len(content)] or piece is None or piece.data != content:
                return False
        return True

    async def _versioned(self, deadline: Deadline) -> bool:
        try:
            return await self._again(self._client.versioning, deadline)
        except AGAIN:
            raise
        except StorageError:
            if self._config.versioning != "any":
                raise
            return False  # it cannot tell, or may not

    async def _sweep(self, deadline: Deadline) -> None:
        """Give up multipart uploads that dead processes left behind: they cost money and show nowhere."""
        try:
            for upload in await self._again(lambda: self._client.uploads(self._prefix), deadline):
                if upload.age_s > DEAD_AFTER_S:
                    await self._again(partial(self._client.abort_upload, upload.key, upload.id), deadline)
        except AGAIN:
            raise
        except StorageError:
            return

    def _check(self, encryption: str, *, versioned: bool) -> None:
        wanted = self._config
        if wanted.encryption and encryption != wanted.encryption:
            raise ConfigError(
                f"objects are stored with encryption {encryption or 'none'}, not {wanted.encryption}",
                where=self._call.where,
                remedy="correct storage.encryption, or the bucket's settings",
            )
        if wanted.versioning != "any" and versioned != (wanted.versioning == "on"):
            raise ConfigError(
                f"the bucket's versioning is {'on' if versioned else 'off'}, storage.versioning is {wanted.versioning}",
                where=self._call.where,
                remedy="change the bucket's versioning, or storage.versioning",
            )
