"""The content of one file between two syncs, and what a power cut may leave of it."""

from __future__ import annotations

_FOREIGN = b'{"\n\xff'  # what another file left in a block: not zeros, no text, and lines in it


class Content:
    """Durable bytes, and the writes on top of them that are not."""

    def __init__(self, durable: bytes) -> None:
        self._durable = durable
        self._steps: list[bytes] = []  # the whole content after each write
        self._first = len(durable)  # before it everything is as it is on disk
        self._outcomes: tuple[bytes, ...] = ()

    @property
    def dirty(self) -> bool:
        return bool(self._steps)

    def write(self, start: int, data: bytes) -> None:
        now = self._now().ljust(start, b"\0")
        self._step(now[:start] + data + now[start + len(data) :], start)

    def resize(self, size: int) -> None:
        now = self._now()
        self._step(now[:size].ljust(size, b"\0"), min(size, len(now)))

    def sync(self) -> None:
        self._durable = self._now()
        self._steps.clear()
        self._first, self._outcomes = len(self._durable), ()

    def end(self, choice: int) -> bytes:
        """The content that an outcome is; 0 for one without writes is what it always was."""
        return self.outcomes()[choice] if self._steps else self._durable

    def outcomes(self) -> tuple[bytes, ...]:
        """First as if nothing had been written, last as if it had been synced, and no two in between are equal."""
        if not self._outcomes:
            before, after = self._durable, self._now()
            found = dict.fromkeys(b for b in (*self._steps, *self._torn()) if b not in (before, after))
            self._outcomes = (before, *found, after)
        return self._outcomes

    def _torn(self) -> list[bytes]:
        """Cut short, or of full length with a part missing: at the first byte, a quarter, half, before the last."""
        whole, first = self._now(), self._first
        size = len(whole) - first
        cuts = sorted({first + at for at in (0, 1, size // 4, size // 2, size - 1) if 0 <= at < size})
        found = [whole[:cut] for cut in cuts]
        for missing in (self._durable, b""):  # written over in place, or in blocks of its own
            there = missing[: len(whole)].ljust(len(whole), b"\0")
            for cut in cuts:
                found += [whole[:cut] + there[cut:], whole[:first] + there[first:cut] + whole[cut:]]
        foreign = (_FOREIGN * (size // len(_FOREIGN) + 1))[:size]
        return [*found, whole[:first] + foreign]

    def _now(self) -> bytes:
        return self._steps[-1] if self._steps else self._durable

    def _step(self, content: bytes, first: int) -> None:
        self._first = min(self._first, first)
        self._steps.append(content)
        self._outcomes = ()
