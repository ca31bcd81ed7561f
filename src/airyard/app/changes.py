"""Tells waiting readers that something about a run has changed.

Owns: subscriptions by run. Must not know: what changed, or how readers wait. Any thread; callbacks must not block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

Callback = Callable[[], object]


class ChangeFeed:
    """Wake-ups: after a commit that touched a run, and after records were added to its logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_run: dict[int, set[Callback]] = {}
        self._any: set[Callback] = set()
        self.closed = False
        """Nothing will be told any more: whoever waits is to answer with what there is."""

    def subscribe(self, run_id: int | None, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` after every change of a run (None: of any run); return how to end that."""
        with self._lock:
            where = self._any if run_id is None else self._by_run.setdefault(run_id, set())
            where.add(callback)

        def unsubscribe() -> None:
            with self._lock:
                where.discard(callback)
                if run_id is not None and not where and self._by_run.get(run_id) is where:
                    del self._by_run[run_id]

        return unsubscribe

    def publish(self, run_ids: Iterable[int]) -> None:
        """Wake the readers of these runs, and those of any run."""
        with self._lock:
            callbacks = {cb for run_id in run_ids for cb in self._by_run.get(run_id, ())} | self._any
        for callback in callbacks:
            callback()

    def close(self) -> None:
        """Wake every reader for the last time: the server is stopping."""
        with self._lock:
            self.closed = True
            callbacks = {callback for found in self._by_run.values() for callback in found} | self._any
        for callback in callbacks:
            callback()
