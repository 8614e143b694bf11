"""A process beside the controller for its durable writes, so that they do not share training's interpreter lock.

A commit makes some thirty system calls, and a save two hundred; in a thread, each of them lets training wait for its
turn once more. Whatever is called here is called there instead, and there only as a matter of speed: while the process
is not ready, once it is gone, and for what is too large to be worth the way, the call is made right here.
"""

from __future__ import annotations

import ctypes
import logging
import logging.handlers
import os
import pickle  # noqa: TID251 - between two processes of ours, over a pipe that nobody else holds
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import accumulate, pairwise
from typing import ParamSpec, Protocol, TypeVar, cast

from .errors import StorageTimeout, VerlError
from .protocols import Portable
from .testing import crash
from .writes import give_way

P = ParamSpec("P")
T = TypeVar("T")

AFTER = 32  # calls that are made here first: a short run is over before a process has paid for its start
LIMIT = 64 << 20  # bytes of a call's arguments: above, hashing and writing prevail, and they leave the lock alone
_PR_SET_PDEATHSIG = 1
_IOV_MAX = 1024  # parts of one system call
_FIRST = 1 << 16  # bytes that are received at once, if there are
_log = logging.getLogger("verl.writes")
_loads = pickle.loads


class Apart(Protocol):
    """Calls a method, here or elsewhere; the effects, the result and the errors are the same."""

    def __call__(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


def here(method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """An ``Apart`` that stays."""
    return method(*args, **kwargs)


class Helper:
    """An ``Apart`` for the methods of some objects, by copies of them in a process of its own. For one calling thread.

    A call that the process did not live to answer is made again here: methods must bear that, as those of writers and
    checkpointers do. The process dies with this one.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        """``objects``: those that are no ``Portable``, or not now, are called here."""
        self._objects = [o for o in objects if isinstance(o, Portable) and o.portable()]
        self._calls, self._ready, self._closed = 0, False, False
        self._pipe: _Pipe | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None when there is none."""
        return self._process.pid if self._process else None

    def __call__(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        owner = getattr(method, "__self__", None)
        place = next((i for i, known in enumerate(self._objects) if known is owner), None)
        if place is None or not self._is_ready():
            return method(*args, **kwargs)
        packed = _packed((place, method.__name__, args, kwargs, crash.lent()))
        if packed is None:
            return method(*args, **kwargs)
        try:
            value, error, records, passes = self._asked(*packed)
        except (OSError, EOFError):
            self._gone()
            return method(*args, **kwargs)
        crash.give_back(passes)
        for record in records:
            logging.getLogger(record.name).handle(record)
        if error is not None:
            raise error
        return cast(T, value)

    def close(self) -> None:
        """End the process; what it is at is cut off, and fails."""
        self._closed = True
        self._end()

    def _start(self) -> None:
        end, its = socket.socketpair()
        mine = _Pipe(end)
        code = f"from verl_core.apart import serve; serve({its.fileno()}, {os.getpid()})"
        try:
            command = [sys.executable, "-P", "-c", code]
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
            mine.send(pickle.dumps((sys.path, os.getcwd())), [memoryview(pickle.dumps(self._objects))])
            self._pipe = mine
        except (OSError, TypeError, AttributeError, pickle.PicklingError) as error:
            _log.info("no process beside this one: %s", error)
            self._end()
        finally:
            its.close()

    def _is_ready(self) -> bool:
        """Whether the process has told that it is ready; the time has come to start it, perhaps."""
        if self._calls == AFTER and sys.executable:
            self._start()
        self._calls += 1
        if self._pipe is None or self._ready:
            return self._ready
        try:
            if self._pipe.waits():
                self._hear(str(self._pipe.receive()[0], "utf-8"))
        except (OSError, EOFError):
            self._gone()
        return self._ready

    def _hear(self, reason: str) -> None:
        self._ready = not reason
        if reason:
            _log.info("no process beside this one: %s", reason)
            self._end()

    def _asked(self, body: bytes, buffers: Sequence[memoryview]) -> _Answer:
        assert self._pipe is not None
        self._pipe.send(body, buffers)
        return cast("_Answer", _loads(self._pipe.receive()[0]))

    def _gone(self) -> None:
        self._ready = False
        if self._closed:
            raise StorageTimeout("given up, since the run ends")
        self._end()
        _log.warning("the process beside this one is gone: writes go on in this one")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel holds it in a call that a disk does not answer
                self._process.wait(5)
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


_Answer = tuple[object, BaseException | None, list[logging.LogRecord], int]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> tuple[type, tuple[pickle.PickleBuffer]]:
        return (memoryview, (pickle.PickleBuffer(obj),)) if isinstance(obj, memoryview) else NotImplemented


def _packed(request: object) -> tuple[bytes, list[memoryview]] | None:
    """A request, and the large pieces of it, which are not copied; None: it is too large, or nothing to be sent."""
    buffers = list[memoryview]()
    file = BytesIO()
    try:
        _Pickler(file, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw())).dump(request)
    except (pickle.PicklingError, BufferError, TypeError, AttributeError):
        return None
    too_large = file.tell() + sum(buffer.nbytes for buffer in buffers) > LIMIT
    return None if too_large else (file.getvalue(), buffers)


class _Pipe:
    """Messages of several parts over a socket. A message that was received lies in memory that the next one uses."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._memory = end, memoryview(bytearray(_FIRST))
        self.close = end.close

    def send(self, body: bytes, buffers: Sequence[memoryview] = ()) -> None:
        """In as few system calls as may be."""
        sizes = [len(body), *(buffer.nbytes for buffer in buffers)]
        head = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        left = [part for part in (memoryview(head), memoryview(body), *buffers) if part.nbytes]
        while left:
            sent = self._socket.sendmsg(left[:_IOV_MAX])
            while left and sent >= left[0].nbytes:
                sent -= left.pop(0).nbytes
            if sent:
                left[0] = left[0][sent:]

    def receive(self) -> list[memoryview]:
        """The parts of the next message. Raises EOFError when there will be none."""
        got = self._fill(0, 4)
        (count,) = struct.unpack_from("<I", self._memory)
        begin = 4 + 8 * count
        got = self._fill(got, begin)
        ends = list(accumulate(struct.unpack_from(f"<{count}Q", self._memory, 4), initial=begin))
        self._fill(got, ends[-1])
        return [self._memory[first:last] for first, last in pairwise(ends)]

    def _fill(self, got: int, wanted: int) -> int:
        """Receive until so many bytes are there; a small message is there at once."""
        if wanted > len(self._memory):
            memory = memoryview(bytearray(wanted))
            memory[:got] = self._memory[:got]
            self._memory = memory
        while got < wanted:
            rest = self._memory[got:wanted] if got else self._memory
            more = self._socket.recv_into(rest, 0, socket.MSG_WAITALL if got else 0)
            if not more:
                raise EOFError
            got += more
        return got

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether there is something to be received, or nothing will come any more."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


# --- the process -----------------------------------------------------------------------------


def serve(fd: int, parent: int) -> None:
    """Answer calls until the other end is closed, or dead."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the controller, who decides when this ends
    with suppress(OSError, AttributeError):  # where there is no such call, the closed pipe ends it a moment later
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    give_way()
    crash.take_over(None)
    pipe = _Pipe(socket.socket(fileno=fd))
    with suppress(EOFError, ConnectionError):
        place, pickled = pipe.receive()
        sys.path[:], folder = _loads(place)
        os.chdir(folder)
        try:
            objects = _loads(pickled)
        except Exception as error:  # noqa: BLE001 - border: told to the parent
            pipe.send(f"{type(error).__name__}: {error}".encode())
            return
        pipe.send(b"")
        while os.getppid() == parent:
            body, *buffers = pipe.receive()
            number, name, args, kwargs, armed = _loads(body, buffers=buffers)
            crash.take_over(armed)
            pipe.send(_answer(getattr(objects[number], name), args, kwargs))


def _answer(method: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    logging.root.addHandler(handler)
    value, failed = None, cast(BaseException | None, None)
    try:
        value = method(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 - border: handed to the caller
        failed = error
    finally:
        logging.root.removeHandler(handler)
    told = [records.get() for _ in range(records.qsize())]
    try:
        answer = pickle.dumps((value, failed, told, crash.passes()))
        _loads(answer)  # an error may not bear the way
    except Exception as error:  # noqa: BLE001 - border: told as a text instead
        failed = VerlError(f"{type(failed or error).__name__}: {failed or error}", where=method.__name__)
        answer = pickle.dumps((None, failed, told, crash.passes()))
    return answer
