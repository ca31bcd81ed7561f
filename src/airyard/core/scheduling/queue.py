"""The index of waiting runs: groups of one shape and one entitlement, each sorted once and kept so.

Owns: membership, order within a group, parked runs and when they wake. Must not know: nodes or quotas.
Derived from the waiting runs: it equals its rebuild at any time.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airyard.core.policy import PoolOrder
from airyard.core.scheduling.order import standing
from airyard.core.scheduling.plan import GroupKey, Waiting

Entry = tuple[float, int, int]
"""Standing, queued_ms, run id."""


@dataclass(slots=True)
class Group:
    """Waiting runs that differ only in their standing. ``by_age`` is in submit order."""

    key: GroupKey
    pool: str
    """The pool that serves its shape first."""
    order: PoolOrder
    ageing_ms: int
    entries: list[Entry] = field(default_factory=list)
    by_age: list[tuple[int, int]] = field(default_factory=list)
    by_length: list[tuple[int, int]] = field(default_factory=list)
    """(how long it may hold its devices, run id), the shortest first."""


class QueueIndex:
    """All waiting runs. ``key_of`` says to which group a run belongs, ``rules_of`` how a group is ordered and ages."""

    def __init__(
        self,
        key_of: Callable[[Waiting], GroupKey],
        rules_of: Callable[[GroupKey], tuple[str, PoolOrder, int]],
    ) -> None:
        self._key_of = key_of
        self._rules_of = rules_of
        self.runs: dict[int, Waiting] = {}
        self.groups: dict[GroupKey, Group] = {}
        self._groups_of: dict[int, Group] = {}
        self.parked: dict[int, int] = {}
        """Run id → when it wakes; 0 for a run that is held until somebody releases it."""
        self._wakes: list[tuple[int, int]] = []

    def put(self, want: Waiting, now_ms: int) -> None:
        """Add a run or replace what is known of it."""
        old = self.runs.get(want.run_id)
        if old == want:
            return
        if old is not None:
            self.drop(want.run_id)
        self.runs[want.run_id] = want
        wakes_ms = max(want.not_before_ms, want.begin_ms)
        if want.held:
            self.parked[want.run_id] = 0
        elif wakes_ms > now_ms:
            self.parked[want.run_id] = wakes_ms
            heapq.heappush(self._wakes, (wakes_ms, want.run_id))
        else:
            self._enter(want)

    def drop(self, run_id: int) -> None:
        """Forget a run; one that is not here is no matter."""
        want = self.runs.pop(run_id, None)
        if want is None or self.parked.pop(run_id, None) is not None:
            return
        self._leave(want)

    def sort_again(self, run_id: int) -> None:
        """Put a run into the group that it belongs to by now."""
        if run_id in self._groups_of:
            self._leave(self.runs[run_id])
            self._enter(self.runs[run_id])

    def _leave(self, want: Waiting) -> None:
        group = self._groups_of.pop(want.run_id)
        _remove(group.entries, standing(want, group.order))
        _remove(group.by_age, (want.queued_ms, want.run_id))
        _remove(group.by_length, (want.bound_ms, want.run_id))
        if not group.entries:
            del self.groups[group.key]

    def wake(self, now_ms: int) -> int | None:
        """Let in whose time has come, and return when the next one's comes."""
        while self._wakes:
            wakes_ms, run_id = self._wakes[0]
            if self.parked.get(run_id) == wakes_ms:
                if wakes_ms > now_ms:
                    return wakes_ms
                del self.parked[run_id]
                self._enter(self.runs[run_id])
            heapq.heappop(self._wakes)
        return None

    def _enter(self, want: Waiting) -> None:
        key = self._key_of(want)
        group = self.groups.get(key)
        if group is None:
            pool, order, ageing_ms = self._rules_of(key)
            group = self.groups[key] = Group(key, pool, order, ageing_ms)
        self._groups_of[want.run_id] = group
        insort(group.entries, standing(want, group.order))
        insort(group.by_age, (want.queued_ms, want.run_id))
        insort(group.by_length, (want.bound_ms, want.run_id))

    def waiting(self) -> Iterator[Waiting]:
        """Yield every run that is not parked, in no order."""
        return (want for want in self.runs.values() if want.run_id not in self.parked)


def _remove(
    rows: list[Entry] | list[tuple[int, int]], entry: tuple[float, int, int] | tuple[int, int]
) -> None:
    place = bisect_left(rows, entry)
    assert rows[place] == entry
    del rows[place]
