"""Turns the change feed's callbacks, which come on the loop's thread, into something a coroutine can wait for.

Owns: the crossing from threads to asyncio. Must not know: what changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType

from airyard.app.changes import ChangeFeed

SAFETY_S = 1.0
"""A reader looks at least this often, should a wake-up ever be lost (another process wrote, a missed publish)."""


class Wakeups:
    """Wakes one coroutine after every change of some runs. Use as a context; look first, then wait."""

    def __init__(self, changes: ChangeFeed, run_ids: Iterable[int]) -> None:
        self._changes = changes
        self._run_ids = frozenset(run_ids)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> Wakeups:
        self._ends = [self._changes.subscribe(run_id, self._wake) for run_id in self._run_ids]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends:
            end()
        self._ends = []  # each of them names this object

    def _wake(self) -> None:
        if self._event.is_set():
            return  # it has been told and has not looked yet
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the event loop has ended: nobody waits any more

    @property
    def over(self) -> bool:
        """True when there is nothing more to wait for: the server is stopping, answer with what there is."""
        return self._changes.closed

    def clear(self) -> None:
        """Forget earlier wake-ups; call before looking, so that what comes after the look is not missed."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up since ``clear``, at most ``timeout_s``; return whether one came."""
        if self.over:
            return False
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
