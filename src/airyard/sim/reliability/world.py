"""A fleet in virtual time with one long run on it: faults strike, the run stops, starts again and works.

Owns: the clock, faults that are there, the run's phases and places. Must not know: who cares for the nodes, and how
(``care.py``); the run's arithmetic (``training.py``). Times are seconds from the beginning.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Protocol

from airyard.core.run import Cause
from airyard.sim.reliability.assumptions import Assumptions, Effect
from airyard.sim.reliability.draws import DAY_S, Alarm, Fault
from airyard.sim.reliability.retrying import Retrying
from airyard.sim.reliability.tally import Tally
from airyard.sim.reliability.training import Training

MEETING_S = 60.0
"""From a start until the ranks talk to each other: a node that is broken shows then."""
CHECKS_S = 30.0
SHORT_LOOK_S = 600.0
Z95 = 1.6449
"""Of the normal distribution."""


class Phase(Enum):
    """Where the run is."""

    WAITING = "waiting"
    STARTING = "starting"
    WORKING = "working"
    STALLED = "stalled"
    """Its processes are dead or hang, and it does not know yet."""


@dataclass(slots=True)
class Ill:
    """A fault that is there. ``strikes``: how often it struck."""

    fault: Fault
    since_s: float
    strikes: int = 0
    gone: bool = False


class Care(Protocol):
    """Who looks after the nodes."""

    def usable(self) -> list[str]:
        """Return the nodes that take a run now."""

    def in_service(self, node: str) -> bool:
        """True while a run may be on the node."""

    def struck(self, ill: Ill) -> None:
        """A fault strikes."""

    def alarm(self, alarm: Alarm) -> None:
        """A signal comes that means nothing."""

    def hang_s(self, ill: Ill) -> float:
        """Return how long a hang lasts that nobody else ends."""

    def interrupted(self, ill: Ill) -> tuple[Cause, str]:
        """Return why the attempt ended, and the node that it is blamed on, or nobody."""

    def refused(self, nodes: Sequence[str]) -> str:
        """Return a node that fails the checks before the start; empty when all pass."""


class World:
    """One simulation."""

    def __init__(
        self,
        known: Assumptions,
        nodes: Sequence[str],
        need: int,
        *,
        days: float,
        seed: int,
        faults: Sequence[Fault],
        alarms: Sequence[Alarm],
    ) -> None:
        self.known, self.nodes, self.need = known, tuple(nodes), need
        self.end_s = days * DAY_S
        self.now_s = 0.0
        self.chance = Random(f"{seed}/world")
        self.tally = Tally()
        self.ills: dict[str, list[Ill]] = {}
        self.mended: set[str] = set()
        """Nodes that have got a new part: no lemons any more."""
        self.training = Training(checkpoint_s=known.job["checkpoint_s"], write_s=known.job["write_s"])
        self.phase = Phase.WAITING
        self.placed: frozenset[str] = frozenset()
        self.retrying: Retrying = Retrying()
        self.care: Care
        self._version = 0
        """Of the attempt: what was meant for an earlier one does nothing."""
        self._not_before_s = self._began_s = 0.0
        self._down_s: float | None = None
        self._down_by_hardware = False
        self._helped = False
        self._short_since_s: float | None = None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        for fault in faults:
            self.at(fault.at_s, partial(self._fall_ill, fault))
        for alarm in alarms:
            self.at(alarm.at_s, partial(self._alarm, alarm))

    # Time.

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Have something done at a time; things of one time are done in the order in which they were asked for."""
        self._count += 1
        heapq.heappush(self._events, (max(at_s, self.now_s), self._count, do))

    def after(self, span_s: float, do: Callable[[], None]) -> None:
        """Have something done after a while."""
        self.at(self.now_s + span_s, do)

    def run(self, care: Care) -> Tally:
        """Live to the end."""
        self.care = care
        self.try_start()
        while self._events and self._events[0][0] < self.end_s:
            at_s, _, do = heapq.heappop(self._events)
            out = len(self.nodes) - sum(map(care.in_service, self.nodes))
            self.tally.out_s += out * (at_s - self.now_s)
            self.now_s = at_s
            do()
        self.now_s = self.end_s
        self._not_short()
        return self.tally

    def between(self, span: Sequence[float]) -> float:
        """Draw a time evenly."""
        return self.chance.uniform(span[0], span[1])

    # Faults.

    def _fall_ill(self, fault: Fault) -> None:
        if fault.kind.user:
            self._user_error()
            return
        if not self.care.in_service(fault.node) or (fault.lemon and fault.node in self.mended):
            return
        self.tally.faults += fault.kind.hardware
        ill = Ill(fault, self.now_s)
        self.ills.setdefault(fault.node, []).append(ill)
        self._strike(ill)

    def _alarm(self, alarm: Alarm) -> None:
        if self.care.in_service(alarm.node):
            self.care.alarm(alarm)

    def _strike(self, ill: Ill) -> None:
        """Let a fault do what it does, now and again while it is there."""
        fault = ill.fault
        if ill.gone or not self.care.in_service(fault.node):
            return
        ill.strikes += 1
        kind = fault.kind
        if fault.node in self.placed:
            if kind.effect is Effect.KILL:
                self._die(ill)
            elif kind.effect is Effect.HANG:
                self._hang(ill)
            self.set_pace()
        if kind.effect is Effect.SILENT and ill.strikes == 1:
            self.tally.silent += 1
        self.care.struck(ill)
        if not kind.lasting:
            self.cure(ill)
        elif kind.again_h > 0:
            self._strike_again(ill)

    def _strike_again(self, ill: Ill) -> None:
        hours = -math.log(1.0 - self.chance.random()) * ill.fault.kind.again_h
        self.after(max(hours * 3600, MEETING_S), partial(self._strike, ill))

    def cure(self, ill: Ill) -> None:
        """End a fault."""
        ill.gone = True
        left = [one for one in self.ills.get(ill.fault.node, ()) if one is not ill]
        self.ills[ill.fault.node] = left
        self.set_pace()

    def mend(self, node: str) -> None:
        """A person ends all that a node has, with a new part where it needs one."""
        self.mended.add(node)
        for ill in list(self.ills.get(node, ())):
            self.cure(ill)

    def back(self, node: str) -> None:
        """A node is in service again, with whatever it still has."""
        for ill in self.ills.get(node, ()):
            if ill.fault.kind.again_h > 0:
                self._strike_again(ill)
        self.try_start()

    def lasting(self, node: str) -> list[Ill]:
        """Return the faults that a node has."""
        return [ill for ill in self.ills.get(node, ()) if ill.fault.kind.lasting]

    # The run.

    def set_pace(self) -> None:
        """Let stragglers slow the run down, and no longer."""
        slow = any(
            ill.fault.kind.effect is Effect.SLOW for node in self.placed for ill in self.ills.get(node, ())
        )
        self.training.pace(self.now_s, self.known.job["slow_factor"] if slow else 1.0)

    def _die(self, ill: Ill) -> None:
        self._stall(ill)
        version = self._version
        self.after(self.between(self.known.job["exit_s"]), lambda: self._ended(ill, version))

    def _hang(self, ill: Ill) -> None:
        self._stall(ill)
        version = self._version
        self.after(self.care.hang_s(ill), lambda: self._ended(ill, version))

    def _stall(self, ill: Ill) -> None:
        """The run makes no step any more."""
        if self.phase not in (Phase.WORKING, Phase.STARTING):
            return
        self._stand_still(by_hardware=ill.fault.kind.hardware)
        if ill.fault.kind.hardware:
            self.tally.kills.setdefault(ill.fault.node, []).append(self.now_s)

    def _stand_still(self, *, by_hardware: bool) -> None:
        if self.phase is not Phase.WORKING:
            self.tally.failed_starts += 1
        else:
            self.tally.interruptions += 1
            self._down_s, self._down_by_hardware, self._helped = self.now_s, by_hardware, False
            self.training.stall(self.now_s)
        self._down_by_hardware |= by_hardware
        self.phase = Phase.STALLED

    def _ended(self, ill: Ill, version: int) -> None:
        """The attempt ends by itself: its processes are gone."""
        if version == self._version and self.phase is Phase.STALLED:
            cause, node = self.care.interrupted(ill)
            self.retry(cause, node)

    def _user_error(self) -> None:
        if self.phase is Phase.WORKING:
            self.tally.user_errors += 1
            self._stand_still(by_hardware=False)
            self.retry(Cause.USER_CODE, "")

    def stop(self, node: str) -> None:
        """End the attempt because a node of it is broken: at once, as far as processes can be ended at once."""
        if node not in self.placed or self.phase is Phase.WAITING:
            return
        version = self._version
        if self.phase in (Phase.WORKING, Phase.STARTING):
            self._stand_still(by_hardware=bool(self.lasting(node)))
        self.after(self.known.job["exit_s"][1], lambda: self._stopped(node, version))

    def _stopped(self, node: str, version: int) -> None:
        if version == self._version and self.phase is Phase.STALLED:
            self.retry(Cause.DEVICE, node)

    def leave(self, node: str) -> None:
        """Ask the run to leave a node: it writes a checkpoint first."""
        if node in self.placed and self.phase in (Phase.WORKING, Phase.STARTING):
            version = self._version
            self.tally.asked_to_leave += 1
            self.after(self.known.job["leave_s"], lambda: self._left(version))

    def _left(self, version: int) -> None:
        if version != self._version or self.phase not in (Phase.WORKING, Phase.STARTING):
            return
        self.training.leave(self.now_s)
        self.retry(Cause.OPERATOR, "")

    def retry(self, cause: Cause, node: str) -> None:
        """Wait, as the retry rules have it, and start again."""
        self._version += 1
        worked_s = self.now_s - self._began_s if self.phase is not Phase.STARTING else 0.0
        wait_s = self.retrying.after(cause, node, self.now_s, worked_s)
        self.placed, self.phase = frozenset(), Phase.WAITING
        if wait_s is None:
            self.tally.given_up += 1
            self.help()
            self.retrying.resume()
            wait_s = self.known.person["resume_min"] * 60
        self._not_before_s = self.now_s + wait_s
        self.after(wait_s, self.try_start)

    def help(self) -> None:
        """A person does something without which the run would not go on."""
        self._helped = True

    def try_start(self) -> None:
        """Place the run if it waits and there are nodes enough."""
        if self.phase is not Phase.WAITING or self.now_s < self._not_before_s:
            return
        usable = self.care.usable()
        if len(usable) < self.need:
            if self._short_since_s is None:
                self._short_since_s = self.now_s
            return
        self._not_short()
        fresh = [node for node in usable if node not in self.retrying.avoid]
        self.placed = frozenset((fresh if len(fresh) >= self.need else usable)[: self.need])
        self._version += 1
        version, self.phase, self._began_s = self._version, Phase.STARTING, self.now_s
        if refused := self.care.refused(sorted(self.placed)):
            self.after(CHECKS_S, lambda: self._refused(refused, version))
            return
        for node in sorted(self.placed):
            for ill in self.ills.get(node, ()):
                if ill.fault.kind.again_h == 0:
                    self.after(MEETING_S, partial(self._strike, ill))
        self.after(self._start_s(), lambda: self._first_step(version))

    def _not_short(self) -> None:
        if self._short_since_s is not None:
            self.tally.short_s += self.now_s - self._short_since_s
            self.help()  # nodes came back; that somebody brought them is what the count is to say
            self._short_since_s = None

    def _start_s(self) -> float:
        middle, late = self.known.job["start_p50_s"], self.known.job["start_p95_s"]
        return max(self.chance.lognormvariate(math.log(middle), math.log(late / middle) / Z95), MEETING_S + 1)

    def _refused(self, node: str, version: int) -> None:
        if version == self._version and self.phase is Phase.STARTING:
            self._down_by_hardware = True
            self.retry(Cause.NODE, node)

    def _first_step(self, version: int) -> None:
        if version != self._version or self.phase is not Phase.STARTING:
            return
        self.phase = Phase.WORKING
        self.training.begin(self.now_s)
        self.set_pace()
        if self._down_s is not None:
            self.tally.recoveries_s.append(self.now_s - self._down_s)
            if self._down_by_hardware:
                self.tally.recovered_helped += self._helped
                self.tally.recovered_alone += not self._helped
            self._down_s = None
