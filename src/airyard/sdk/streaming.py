"""Endless answers: NDJSON cut into objects, and gone on with after a broken connection.

Owns: line splitting, reconnecting by cursor, the patience of a reader.
Must not know: HTTP, what the objects mean beyond ``type`` and ``cursor``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from airyard.core.errors import Unavailable
from airyard.sdk.transport import ConnectionLost

Event = dict[str, Any]
Opener = Callable[[Any], AbstractContextManager[Iterator[bytes]]]
"""Opens the stream after the point it is given: a cursor, or None for the beginning."""

TICK: Event = {"type": "TICK"}
"""Stands for the empty line by which the server says that it is still there."""

PATIENCE_S = 60.0
"""How long a server may be away before a reader gives up; longer than a restart takes."""

_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_OVERLAP_MS = 30_000
_REMEMBERED_LINES = 200_000


def split_objects(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Cut NDJSON into objects; an empty line is TICK; an unfinished last line is dropped: it comes again."""
    rest = b""
    for chunk in chunks:
        if b"\n" not in chunk:
            rest += chunk
            continue
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield json.loads(line) if line.strip() else TICK


def follow(
    open_after: Opener,
    *,
    last_type: str,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    cursor: str | None = None,
    revive: Callable[[], None] = lambda: None,
) -> Iterator[Event]:
    """Yield every object once, in order, until one of ``last_type``, over as many connections as it takes.

    ``clock`` counts seconds. ``revive`` runs before each new try, to start a dead embedded server again.
    Raises: Unavailable once the server has been away for PATIENCE_S; whatever the server refuses.
    """
    away_since, tries = clock(), 0
    while True:
        try:
            with open_after(cursor) as chunks:
                for event in split_objects(chunks):
                    away_since, tries = clock(), 0
                    cursor = event.get("cursor") or cursor
                    yield event
                    if event.get("type") == last_type:
                        return
        except Unavailable as error:
            if clock() - away_since > PATIENCE_S or not _may_pass(error):
                raise
        if clock() - away_since > PATIENCE_S:
            raise Unavailable("The server ends the stream again and again before the run has ended.")
        sleep(_DELAYS_S[min(tries, len(_DELAYS_S) - 1)])
        tries += 1
        if tries > 1:
            revive()


def _may_pass(error: Unavailable) -> bool:
    return isinstance(error, ConnectionLost) or error.retry_after_ms is not None


class Overlap:
    """Drops the lines that a reader without a cursor sees again after it asked from a little earlier.

    Cost: one integer a line, for the last 200,000 lines.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_REMEMBERED_LINES)
        self._repeated: dict[int, int] = {}
        self.last_ms: int | None = None

    def since_ms(self) -> int | None:
        """Return from when to ask again, and expect what was seen to come again; None before any line."""
        if self.last_ms is None:
            return None
        self._repeated = {}
        for key in self._recent:
            self._repeated[key] = self._repeated.get(key, 0) + 1
        return self.last_ms - _OVERLAP_MS

    def is_new(self, event: Event) -> bool:
        """Remember a LOG object; False when it was seen before the reconnect."""
        key = hash((event.get("time_ns"), event.get("node"), event.get("stream"), event.get("line")))
        left = self._repeated.get(key, 0)
        if left:
            self._repeated[key] = left - 1
            return False
        self._recent.append(key)
        self.last_ms = max(self.last_ms or 0, int(event.get("time_ns") or 0) // 1_000_000)
        return True
