"""Looks at members of attempts that may hang: when one is asked for, what came back. In memory.

Owns: once a stall and then now and again, how long a verdict waits. Must not know: HTTP, how a look is taken, verdicts.
What is seen comes from the member's own machine under its own token: believed no further than on its own run.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airyard.core.errors import UserError
from airyard.core.ids import AttemptKey, MemberKey

WAIT_MS = 20_000
"""So long a verdict waits for looks; what comes later still counts."""
AGAIN_MS = 600_000
_GIVE_AGAIN_MS = 5_000
_MOST_GANGS = 256
_MOST_RANKS = 64
_STACK_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLooked:
    """One rank as it was looked at; GPU readings are percentages, None where there were none."""

    rank: int
    state: str
    stack: str
    gpu_lost: bool = False
    gpu_least: int | None = None
    gpu_most: int | None = None


@dataclass(slots=True)
class _Look:
    number: int
    began_ms: int
    first: bool
    left: set[int]
    given_ms: dict[int, int] = field(default_factory=dict)
    seen: dict[int, tuple[RankLooked, ...]] = field(default_factory=dict)


class GangLooks:
    """The newest look at each attempt that stands still. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: OrderedDict[AttemptKey, _Look] = OrderedDict()

    def stalled(self, key: AttemptKey, members: Collection[int], now_ms: int) -> tuple[bool, bool]:
        """Note that an attempt stands still; return whether a look begins now, and whether the verdict can be given."""
        with self._lock:
            look = self._looks.get(key)
            begins = look is None or now_ms - look.began_ms >= AGAIN_MS
            if look is None or begins:
                seen = look.seen if look is not None else {}
                first = look is None
                look = _Look(number=now_ms, began_ms=now_ms, first=first, left=set(members), seen=seen)
                self._looks[key] = look
                self._looks.move_to_end(key)
                while len(self._looks) > _MOST_GANGS:
                    self._looks.popitem(last=False)
            return begins, not look.first or not look.left or now_ms - look.began_ms >= WAIT_MS

    def moves(self, key: AttemptKey) -> None:
        """Forget the looks at an attempt that gets on, or has ended."""
        with self._lock:
            self._looks.pop(key, None)

    def wanted(self, key: MemberKey, now_ms: int) -> int | None:
        """Return the number of the look that a member is to take; None while there is none to tell it of."""
        with self._lock:
            look = self._looks.get(key.attempt_key)
            if look is None or key.member not in look.left or now_ms - look.began_ms >= WAIT_MS:
                return None
            given_ms = look.given_ms.get(key.member)
            if given_ms is not None and now_ms - given_ms < _GIVE_AGAIN_MS:
                return None
            return look.number

    def given(self, key: MemberKey, now_ms: int) -> None:
        """Note that a member was told."""
        with self._lock:
            look = self._looks.get(key.attempt_key)
            if look is not None:
                look.given_ms[key.member] = now_ms

    def put(self, key: MemberKey, body: Mapping[str, Any]) -> None:
        """Take what a member saw. Raises: UserError for what no runner sends."""
        try:
            number = int(body["number"])
            ranks = tuple(_rank(item) for item in list(body.get("ranks") or ())[:_MOST_RANKS])
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"this is no look at a member: {error!r}", code="BAD_REPORT") from error
        with self._lock:
            look = self._looks.get(key.attempt_key)
            if look is not None and look.number == number:
                look.left.discard(key.member)
                look.seen[key.member] = ranks

    def of(self, key: AttemptKey) -> Mapping[int, tuple[RankLooked, ...]]:
        """Return what is known, by member."""
        with self._lock:
            look = self._looks.get(key)
            return dict(look.seen) if look is not None else {}


def _rank(item: Mapping[str, Any]) -> RankLooked:
    least, most = item.get("gpu_least"), item.get("gpu_most")
    return RankLooked(
        rank=int(item["rank"]),
        state=str(item.get("state", ""))[:1],
        stack=str(item.get("stack", ""))[:_STACK_CHARACTERS],
        gpu_lost=item.get("gpu_lost") is True,
        gpu_least=int(least) if least is not None else None,
        gpu_most=int(most) if most is not None else None,
    )
