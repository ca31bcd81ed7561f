"""Work that somebody waits for over several requests: begun, asked for until it is done, ended when nobody asks.

Owns: names, bounds, who still waits. Must not know: what the work is.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from airyard.core.errors import Conflict, NotFound

UNATTENDED_S = 60.0
"""Work is ended when nobody has asked for it for so long."""
SIDE_BY_SIDE = 16
KEPT = 64
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _Piece(Generic[T]):
    asked_s: float
    over: threading.Event = field(default_factory=threading.Event)
    result: T | None = None


class Attended(Generic[T]):
    """Pieces of work of one kind. Any thread."""

    def __init__(self, kind: str) -> None:
        """``kind``: what a piece is called in a refusal, as "test of two nodes"."""
        self._kind = kind
        self._lock = threading.Lock()
        self._pieces: OrderedDict[str, _Piece[T]] = OrderedDict()

    def begin(self, work: Callable[[str, Callable[[], bool]], T]) -> str:
        """Begin a piece and return its name. ``work`` is told the name and when to stop, and never raises.

        Raises: Conflict where too many are under way.
        """
        name, piece = uuid.uuid4().hex, _Piece[T](asked_s=time.monotonic())
        with self._lock:
            live = sum(not each.over.is_set() for each in self._pieces.values())
            if live >= SIDE_BY_SIDE:
                raise Conflict(
                    f"{live} pieces of this work ({self._kind}) are under way, the most at a time",
                    code="TOO_MANY_ROUNDS",
                    fix="wait for one of them",
                )
            self._pieces[name] = piece
            for old in [key for key, each in self._pieces.items() if each.over.is_set()][: -KEPT or None]:
                del self._pieces[old]

        def run() -> None:
            try:
                piece.result = work(name, lambda: time.monotonic() - piece.asked_s > UNATTENDED_S)
            finally:
                piece.over.set()

        threading.Thread(target=run, name="attended", daemon=True).start()
        return name

    def wait(self, name: str, wait_s: float) -> T | None:
        """Return what a piece came to; None while it goes on. Raises: NotFound for one that is not known."""
        with self._lock:
            piece = self._pieces.get(name)
        if piece is None:
            raise NotFound(
                f"there is no {self._kind} {name} (any more); a server that was started again knows none",
                code="ROUND_NOT_FOUND",
                fix="ask for it again",
            )
        piece.asked_s = time.monotonic() + wait_s
        piece.over.wait(wait_s)
        return piece.result if piece.over.is_set() else None
