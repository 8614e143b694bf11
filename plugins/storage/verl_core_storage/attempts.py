"""Requests to a server, tried again where that is harmless: bounded in number and time, with jitter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter
from verl_core.errors import (
    ObjectExists,
    StorageConflict,
    StorageError,
    StorageThrottled,
    StorageTimeout,
    StorageUnavailable,
)

from .deadline import Call, Deadline

T = TypeVar("T")
AGAIN = (StorageTimeout, StorageUnavailable, StorageThrottled, StorageConflict)  # what may pass by itself
UNCLEAR = (StorageTimeout, StorageUnavailable)  # what was asked for may have been done
_SHARE = 3  # an attempt gets this part of the call's time, so that a lost one can be repeated


@dataclass(frozen=True, slots=True)
class Problem:
    """What a client's own error means."""

    kind: type[StorageError]
    text: str
    remedy: str = ""

    def error(self, call: Call) -> StorageError:
        remedy = self.remedy or (call.remedy if issubclass(self.kind, AGAIN) else "")
        return self.kind(f"{call.operation}: {self.text}", where=call.where, remedy=remedy)


_limit: ContextVar[asyncio.Timeout] = ContextVar("limit of the attempt under way in this task")


def carry(deadline: Deadline, size: int) -> None:
    """So many bytes come with the answer to this task's request: they get the time that they need."""
    deadline.carry(size)
    deadline.progress(size)
    limit = _limit.get()
    when = limit.when()
    if when is not None:
        limit.reschedule(when + deadline.limits.seconds_for(size))


class Attempts:
    """Runs requests of one client. ``raw`` are its own errors, ``explain`` says what one of them means."""

    def __init__(self, raw: tuple[type[Exception], ...], explain: Callable[[Exception], Problem]) -> None:
        self._raw, self._explain = raw, explain

    async def run(
        self,
        request: Callable[[], Awaitable[T]],
        call: Call,
        deadline: Deadline,
        *,
        size: int = 0,
        landed: Callable[[bool], Awaitable[T | None]] | None = None,
    ) -> T:
        """The request's result. ``size``: bytes that one attempt carries.

        ``landed`` looks whether the name is taken by this very call, whose first answer was lost: here (then it is
        given True), or below, where connections are repeated without a word.
        """
        deadline.progress(size)
        unclear = False
        async for attempt in self._retrying(deadline):
            with attempt:
                try:
                    result = await self._once(request, call, deadline, size)
                    deadline.progress()
                    return result
                except (ObjectExists, StorageConflict):
                    look = partial(landed, unclear) if landed is not None else None
                    found = await self._once(look, call, deadline, size) if look is not None else None
                    if found is None:
                        raise
                    return found
                except UNCLEAR:
                    unclear = True
                    raise
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def _retrying(deadline: Deadline) -> AsyncRetrying:
        count = stop_after_attempt(deadline.limits.attempts)

        def stop(state: RetryCallState) -> bool:
            return count(state) or state.upcoming_sleep >= deadline.left_s

        return AsyncRetrying(
            retry=retry_if_exception_type(AGAIN),
            stop=stop,
            wait=wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.2),
            reraise=True,
        )

    async def _once(self, request: Callable[[], Awaitable[T]], call: Call, deadline: Deadline, size: int) -> T:
        limits = deadline.limits
        allowed_s = min(limits.timeout_s / _SHARE + limits.seconds_for(size), deadline.left_s)
        try:
            async with asyncio.timeout(allowed_s) as limit:
                _limit.set(limit)
                return await request()
        except TimeoutError as error:
            raise call.late(allowed_s) from error
        except self._raw as error:
            raise self._explain(error).error(call) from error
