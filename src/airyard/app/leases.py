"""Leases: whom the server has heard and when, and who is therefore surely over although nobody can be asked.

Owns: the server's side of the fence, as bookkeeping. Must not know: HTTP, threads of others, the journal, the clock.

A runner's poll for orders renews its lease: the answer lets its member run for ``lease_ms`` from when the poll was
*sent*. Here it counts from when the poll was *received*, which is later, and a margin longer. So a member that is
declared gone here has been ended there, whatever the network did. All times are milliseconds of a clock that no one can
set; it may stand still while the machine sleeps, which only makes the server wait longer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from airyard.core.commands import MemberGone, SeenMember, SeenState
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Cause, Exit, Member, MemberPhase
from airyard.core.state import ClusterState

STANDBY_LEASE_S = 18.0
"""With a standby: a machine that dies is replaced within half a minute, even where it is the leader's own.

Its last beat may be renewed for 4 s, then comes this lease, then the margin; the rest is for looking and starting.
"""
LONE_LEASE_S = 600.0
"""Without one: a server may be restarted, and its machine rebooted, without ending a run."""
HOLD_S = 3600.0
"""Granted before a planned stop of the server."""
SWEEP_OVER = 1_000
MARGIN_MS = 4_000
MARGIN_SHARE = 400
"""Clocks of two machines may differ in rate by a thousandth each: long leases get a 400th part as their margin."""


def surely_over_ms(granted_at_ms: int, lease_ms: int) -> int:
    """Return when a lease is over on every clock, and what ran under it is dead."""
    return granted_at_ms + lease_ms + max(MARGIN_MS, lease_ms // MARGIN_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A renewal: when it was received, and the longest lease that its runner may count."""

    at_ms: int
    lease_ms: int


class Leases:
    """The leases that one leader grants. Any thread.

    ``longest_ms`` is the longest lease that an earlier leader may have granted: it binds for who has not yet been heard
    to follow this leader. ``begun_ms`` is when no earlier leader granted anything any more.
    """

    def __init__(self, *, epoch: int, lease_ms: int, longest_ms: int, begun_ms: int) -> None:
        self._epoch = epoch
        self._lease_ms = lease_ms
        self._longest_ms = max(lease_ms, longest_ms)
        self._begun_ms = begun_ms
        self._lock = threading.Lock()
        self._heard: dict[MemberKey, Heard] = {}
        self._over: set[MemberKey] = set()
        self._away: dict[str, int] = {}
        self._held: set[MemberKey] = set()
        self._holding = False
        self._sweep_over = SWEEP_OVER

    @property
    def lease_ms(self) -> int:
        """What an answer to a poll grants now."""
        return self._lease_ms

    @property
    def lease_s(self) -> float:
        """What an answer to a poll grants now, as the LEASE order says it."""
        return self._lease_ms / 1000

    def heard(self, key: MemberKey, now_ms: int, *, epoch: int, lease_s: float = 0.0) -> bool:
        """Note a poll as it comes in; False: the member has been declared gone and must not be answered.

        ``epoch`` is the newest leader's that the runner follows, ``lease_s`` the lease that it counts, both as its poll
        says. One that follows this leader counts no lease of an earlier one any more.
        """
        with self._lock:
            if key in self._over:
                return False
            lease_ms = self._lease_ms if epoch == self._epoch else max(self._lease_ms, self._longest_ms)
            self._heard[key] = Heard(at_ms=now_ms, lease_ms=lease_ms)
            if self._holding and epoch == self._epoch and lease_s * 1000 >= self._lease_ms:
                self._held.add(key)
            return True

    def settles(self, now_ms: int) -> bool:
        """True once: from now on no runner counts a lease of an earlier leader that is longer than this one's."""
        with self._lock:
            if self._holding or self._longest_ms <= self._lease_ms:
                return False
            if now_ms < surely_over_ms(self._begun_ms, self._longest_ms):
                return False
            self._longest_ms = self._lease_ms
            return True

    def hold(self, lease_ms: int) -> None:
        """Grant a longer lease from now on: this leader is about to stop, and declares nobody gone any more."""
        with self._lock:
            self._lease_ms = max(lease_ms, self._lease_ms)
            self._holding = True

    @property
    def held(self) -> frozenset[MemberKey]:
        """The members that have said that they count the hold."""
        with self._lock:
            return frozenset(self._held)

    def unheld(self, state: ClusterState) -> list[MemberKey]:
        """Return the members that have not said that they count the hold, as far as they can be reached."""
        with self._lock:
            return [
                attempt.member_key(member.index)
                for attempt, member in _unreleased(state)
                if attempt.member_key(member.index) not in self._held
                and member.phase is not MemberPhase.STARTING
                and _is_alive(state, member.machine)
            ]

    def overdue(self, state: ClusterState, now_ms: int, wall_ms: int) -> list[MemberGone]:
        """Return what is to be said of members whose machine is away and whose lease is over on every clock.

        Once said here, a member is answered no more: else it might renew before the journal has it. Said again until
        the state knows. ``wall_ms`` is the server's wall time, for the record. Cost: live members, while any is away.
        """
        with self._lock:
            self._note_away(state, now_ms)
            found: list[MemberGone] = []
            if self._holding or not (self._away or len(self._heard) > self._sweep_over):
                return found
            live: set[MemberKey] = set()
            for attempt, member in _unreleased(state):
                key = attempt.member_key(member.index)
                live.add(key)
                if member.machine in self._away and now_ms >= self._until_ms(attempt, member):
                    self._over.add(key)
                    found.append(self._gone(key, member, now_ms, wall_ms))
            self._over &= live
            self._heard = {key: heard for key, heard in self._heard.items() if key in live}
            self._sweep_over = 2 * len(self._heard) + SWEEP_OVER
            return found

    def _note_away(self, state: ClusterState, now_ms: int) -> None:
        away = {name for name, machine in state.machines.items() if not machine.alive}
        self._away = {name: self._away.get(name, now_ms) for name in away}

    def _until_ms(self, attempt: Attempt, member: Member) -> int:
        heard = self._heard.get(attempt.member_key(member.index))
        if heard is not None:
            return surely_over_ms(heard.at_ms, heard.lease_ms)
        if attempt.epoch == self._epoch:
            # Placed by this leader and never answered: it has been told nothing and can run nothing.
            return surely_over_ms(self._away[member.machine], self._lease_ms)
        return surely_over_ms(self._begun_ms, self._longest_ms)

    def _gone(self, key: MemberKey, member: Member, now_ms: int, wall_ms: int) -> MemberGone:
        heard = self._heard.get(key)
        silent_s = (now_ms - (heard.at_ms if heard else self._begun_ms)) / 1000
        since = "was last heard" if heard else "has not been heard since this server began,"
        lease_s = (heard.lease_ms if heard else self._longest_ms) / 1000
        message = (
            f"machine {member.machine} is away and the lease ran out: the member's runner {since} "
            f"{silent_s:.0f} s ago, and ends it after {lease_s:g} s without the server"
        )
        lost = Exit(
            code=None,
            signal=None,
            started=member.phase is MemberPhase.RUNNING,
            cause=Cause.NODE,
            message=message,
            at_ms=wall_ms,
        )
        return MemberGone(seen=SeenMember(key=key, state=SeenState.DIED, exit=lost))


class Reign:
    """A leader's own lease on the journal it shares with a standby: until when it may answer anybody. One thread.

    The leader counts from when it *sent* the last renewal that the journal took; whoever would take over counts from
    when the journal took it, and a margin longer.
    """

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._until_ms: int | None = None

    def renewed(self, sent_ms: int) -> None:
        """Note that the journal took a renewal that was sent then."""
        until_ms = sent_ms + self._lease_ms
        self._until_ms = until_ms if self._until_ms is None else max(self._until_ms, until_ms)

    def holds(self, now_ms: int) -> bool:
        """True while no other server can lead."""
        return self._until_ms is not None and now_ms < self._until_ms


def _unreleased(state: ClusterState) -> Iterator[tuple[Attempt, Member]]:
    for _, attempt in state.live_attempts():
        for member in attempt.members:
            if not member.released:
                yield attempt, member


def _is_alive(state: ClusterState, machine: str) -> bool:
    found = state.machines.get(machine)
    return found is not None and found.alive
