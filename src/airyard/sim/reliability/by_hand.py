"""Nodes that nobody looks after but persons who are called: a plain restart on whatever nodes there are.

Owns: when somebody is called, what they find. Must not know: health events, states of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from airyard.core.health.facts import Remedy
from airyard.core.run import Cause
from airyard.sim.reliability.assumptions import Effect
from airyard.sim.reliability.draws import Alarm
from airyard.sim.reliability.world import Ill, World

_REBOOT_S = 600.0


class ByHand:
    """Persons in a world without health."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.known = world.known
        self._chance = Random(f"{seed}/by hand")
        self._out: set[str] = set()
        self._failures: dict[str, list[float]] = {}
        self._called: set[str] = set()

    def usable(self) -> list[str]:
        """Return the nodes that are not in repair."""
        return [node for node in self.world.nodes if node not in self._out]

    def in_service(self, node: str) -> bool:
        """True while nobody has the node in their hands."""
        return node not in self._out

    def alarm(self, alarm: Alarm) -> None:
        """Nobody looks at alarms."""

    def struck(self, ill: Ill) -> None:
        """A host that is away is seen by everybody; a slow run and wrong results after a day."""
        person, kind = self.known.person, ill.fault.kind
        if kind.channel == "host":
            self._take_out(ill.fault.node, self._diagnosis_s() + self._mending_s(ill))
        elif kind.effect in (Effect.SLOW, Effect.SILENT) and ill.strikes == 1:
            hours = person["notice_slow_h" if kind.effect is Effect.SLOW else "silent_h"]
            self.world.after(hours * 3600, partial(self._found, ill))

    def _diagnosis_s(self) -> float:
        return self._chance.uniform(*self.known.person["diagnose_min"]) * 60

    def _mending_s(self, ill: Ill) -> float:
        if ill.fault.cure < ill.fault.kind.cured.get(Remedy.REBOOT, 0.0):
            return _REBOOT_S
        return self._chance.uniform(*self.known.person["repair_h"]) * 3600

    def _found(self, ill: Ill) -> None:
        if not ill.gone:
            self._take_out(ill.fault.node, self._mending_s(ill))

    def _take_out(self, node: str, span_s: float) -> None:
        """Take a node out, whoever is on it, and mend it for good."""
        if node in self._out:
            return
        self._out.add(node)
        self.world.tally.visits += 1
        self.world.tally.cordons += 1
        self.world.tally.false_cordons += not self.world.lasting(node)
        self.world.after(0.0, partial(self.world.leave, node))
        self.world.after(span_s, partial(self._back, node))

    def _back(self, node: str) -> None:
        self.world.mend(node)
        self._out.discard(node)
        self.world.tally.returned_helped += 1
        self.world.back(node)

    def hang_s(self, ill: Ill) -> float:
        """Return the watchdog's time."""
        return float(self.known.person["watchdog_s"])

    def interrupted(self, ill: Ill) -> tuple[Cause, str]:
        """Count a failure; who has failed before within some hours has somebody called."""
        person, node, now_s = self.known.person, ill.fault.node, self.world.now_s
        if ill.fault.kind.hardware and node not in self._out:
            recent = [
                at for at in self._failures.get(node, ()) if at > now_s - person["called_within_h"] * 3600
            ]
            self._failures[node] = [*recent, now_s]
            if len(recent) + 1 >= person["called_after"] and node not in self._called:
                self._called.add(node)
                self.world.help()
                self.world.after(self._diagnosis_s(), partial(self._diagnosed, ill, self.world.placed))
        return Cause.PLATFORM, ""

    def _diagnosed(self, ill: Ill, placed: frozenset[str]) -> None:
        """Take out the node that is taken to be broken, which it is more often than not."""
        node = ill.fault.node
        self._called.discard(node)
        self._failures.pop(node, None)
        if self._chance.random() >= self.known.person["right"]:
            node = self._chance.choice(sorted(placed))
        self._take_out(node, self._mending_s(ill))

    def refused(self, nodes: Sequence[str]) -> str:
        """There are no checks."""
        return ""
