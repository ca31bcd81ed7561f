"""What operators do with the nodes of a simulated yard: cordon, drain, open again, give their word that one is dead.

Owns: which nodes they pick, when, with which deadlines. Must not know: what follows. Their word is true: they look at
a machine before they say that it is dead, and name the system that they saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airyard.core.commands import Command, ConfirmDead, CordonNodes, DrainNodes, UncordonNodes
from airyard.core.decide import Operated
from airyard.core.errors import AiryardError
from airyard.sim.monitors import Monitors
from airyard.sim.people import People
from airyard.sim.setting import Setting
from airyard.sim.truth import Truth

if TYPE_CHECKING:
    from airyard.sim.machine import SimMachine

ACTS = 4
LOOK_MS = 6_000


class Operators:
    """Everybody who looks after the machines."""

    def __init__(
        self,
        setting: Setting,
        people: People,
        truth: Truth,
        machines: Sequence[SimMachine],
        monitors: Monitors,
    ) -> None:
        self._setting = setting
        self._people = people
        self._truth = truth
        self._machines = machines
        self._monitors = monitors
        self._said: set[str] = set()

    def begin(self, within_ms: int) -> None:
        """Close and drain a few nodes within a time, and keep an eye on the machines."""
        chance = self._setting.chance
        if not chance.roll(0.6):
            return
        for _ in range(chance.between(1, ACTS)):
            self._setting.later(chance.between(0, within_ms), self._act)
        self._look()

    def _act(self) -> None:
        chance = self._setting.chance
        nodes = tuple(self._node() for _ in range(chance.between(1, 2)))
        if chance.healed:
            return
        if chance.roll(0.3):
            self._ask("cordon", CordonNodes(nodes=nodes, by="op", reason="looks odd"))
        else:
            after_ms = chance.pick((None, None, 0, 4_000, 40_000))
            deadline_ms = None if after_ms is None else self._setting.time.now_ms() + after_ms
            drain = DrainNodes(nodes=nodes, by="op", reason="new fans", deadline_ms=deadline_ms)
            self._ask("drain", drain)
        if chance.roll(0.4):
            self._setting.later(chance.between(5_000, 120_000), lambda: self._open(nodes))

    def _node(self) -> str:
        """Pick a node, rather one that is in use: there it hurts."""
        chance = self._setting.chance
        in_use = sorted(
            {
                member.node
                for _, attempt in self._truth.state.live_attempts()
                for member in attempt.members
                if not member.released
            }
        )
        if in_use and chance.roll(0.7):
            return chance.pick(in_use)
        return chance.pick(chance.pick(self._machines).nodes).name

    def _open(self, nodes: tuple[str, ...]) -> None:
        self._ask("uncordon", UncordonNodes(nodes=nodes, by="op"))

    def open_all(self) -> None:
        """Open what is closed: nobody else would. A late or repeated request may have closed it again."""
        out = self._monitors.unhealthy()
        if closed := tuple(name for name in self._truth.state.cordons if name not in out):
            self._open(closed)

    def _look(self) -> None:
        """Walk past the machines; of one that is down, say that it is dead."""
        chance = self._setting.chance
        if chance.healed:
            return
        for machine in self._machines:
            if not machine.up and machine.boot_id not in self._said and chance.roll(0.5):
                self._said.add(machine.boot_id)
                word = ConfirmDead(
                    name=machine.name, by="op", reason="its power is off", boot_id=machine.boot_id
                )
                self._ask("confirm dead", word)
        self._setting.later(chance.between(500, LOOK_MS), self._look)

    def _ask(self, what: str, command: Command) -> None:
        def then(answer: Any) -> None:
            seen = self._setting.chance.seen
            if isinstance(answer, AiryardError):
                seen[f"operators: {what} refused"] += 1
            elif isinstance(answer, Operated):
                news = any(note.changed for note in answer.notes)
                seen[f"operators: {what}{'' if news else ' was so already'}"] += 1

        self._people.ask(command, then)
