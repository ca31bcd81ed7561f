"""A connection to PostgreSQL that gives up on a server which does not answer: frozen, swapping, or cut off in silence.

Owns: the limit on one wait. Must not know: statements. The server's own limits (``statement_timeout``,
``lock_timeout``) end what takes long there; they end nothing where the server itself stands still, and TCP's see only
its kernel.
"""

from __future__ import annotations

import select
import time
from typing import Any

import psycopg

_TURN_S = 1.0
_POLL = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}
"""By psycopg's ``Wait`` and ``Ready``: 1 is reading, 2 writing."""


class Limited(psycopg.Connection[Any]):
    """Raises OperationalError, and is closed, when one answer takes longer than ``answer_s``; None: it waits on.

    What became of the statement is then not known: the server may carry it out when it wakes.
    """

    answer_s: float | None = None

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Drive one exchange with the server. Raises: psycopg.OperationalError."""
        if self.answer_s is None:
            return super().wait(gen, *args, **kwargs)
        deadline = time.monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send(self._ready(int(wanted), deadline))
        except StopIteration as done:
            return done.value

    def _ready(self, wanted: int, deadline: float) -> Any:
        poller = select.poll()
        poller.register(self.pgconn.socket, _POLL[wanted])
        while True:
            left_s = deadline - time.monotonic()
            events = poller.poll(max(0.0, min(left_s, _TURN_S)) * 1000)
            if events:
                seen = events[0][1]
                # An error or a hang-up is read like data: libpq says what it was.
                ready = (1 if seen & ~select.POLLOUT else 0) | (2 if seen & select.POLLOUT else 0)
                return psycopg.waiting.Ready(ready & wanted or wanted)
            if left_s <= 0:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"it has not answered for {self.answer_s:g} s")
