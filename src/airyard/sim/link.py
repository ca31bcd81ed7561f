"""The server's link to one machine's agent: hello first, then requests until answered, facts the other way.

Owns: connecting, order and loss of what is under way when a link breaks. Must not know: what agents and servers do
with it. It behaves as ``adapters.local_engine`` does: requests wait for the hello, and are sent again after a break.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.commands import MachineAway, MachineSeen, MemberGone
from airyard.sim.chance import Fault
from airyard.sim.setting import Setting

if TYPE_CHECKING:
    from airyard.sim.machine import SimMachine

Request = StartMember | KillMember | ForgetMember | ShipLogs
Sink = Callable[[MachineSeen | MachineAway | MemberGone], None]
RETRY_MS = 700


class Link:
    """One server's connection to one agent. A new server has new links."""

    def __init__(self, setting: Setting, machine: SimMachine, sink: Sink, cut: set[str]) -> None:
        self._setting = setting
        self._machine = machine
        self._sink = sink
        self._cut = cut
        self._life = 0
        self._greeted = False
        self._last_at_ms = {"up": 0, "down": 0}
        self._requests: dict[tuple[str, str], Request] = {}
        self._sent: set[tuple[str, str]] = set()
        self.closed = False

    def open(self) -> None:
        """Try to connect, for ever."""
        machine = self._machine
        if self.closed:
            return
        if machine.name in self._cut or not machine.agent_up or machine.asleep:
            self._setting.later(RETRY_MS, self.open)
            return
        self._life += 1
        self._greeted = False
        self._sent.clear()
        machine.listeners[self] = self._carrier(self._life)
        self._carry("up", self._hello)

    def close(self) -> None:
        """The server is gone."""
        self.closed = True
        self._life += 1
        self._machine.listeners.pop(self, None)

    def broken(self) -> None:
        """The connection ended: what was under way is lost."""
        if self.closed:
            return
        self._life += 1
        if self._greeted:
            self._greeted = False
            self._sink(MachineAway(machine=self._machine.name))
        self._setting.later(RETRY_MS, self.open)

    def renew(self) -> None:
        """Ask for the whole picture again, over the same connection. Requests wait until the answer is told."""
        if self._greeted and not self.closed:
            self._greeted = False
            self._carry("up", self._hello)

    def ask(self, request: Request) -> None:
        """Have the agent do something as soon as it can be reached. The same request again replaces the first."""
        self._requests.setdefault((type(request).__name__, str(request.key)), request)
        self._flush()

    # --- carrying

    def _carry(self, way: str, act: Callable[[], None]) -> None:
        """Carry something to the agent (``up``) or from it (``down``), in order, unless the link breaks meanwhile."""
        life = self._life
        chance = self._setting.chance
        delay_ms = chance.between(500, 20_000) if chance.strikes(Fault.SLOW) else chance.between(1, 3)
        at_ms = max(self._last_at_ms[way], self._setting.time.now_ms() + delay_ms)
        self._last_at_ms[way] = at_ms

        def arrive() -> None:
            if life == self._life and not self.closed:
                act()

        self._setting.time.at(at_ms, arrive)

    def _carrier(self, life: int) -> Callable[[MemberGone], None]:
        def push(fact: MemberGone) -> None:
            if life == self._life:
                self._carry("down", lambda: self._sink(fact))

        return push

    def _hello(self) -> None:
        if not self._machine.agent_up:
            return
        seen = self._machine.hello()
        self._carry("down", lambda: self._greet(seen))

    def _greet(self, seen: MachineSeen) -> None:
        self._sink(seen)
        self._greeted = True
        self._flush()

    def _flush(self) -> None:
        if not self._greeted or self.closed:
            return
        for name, request in list(self._requests.items()):
            if name not in self._sent:
                self._sent.add(name)
                self._carry("up", partial(self._serve, name, request))

    def _serve(self, name: tuple[str, str], request: Request) -> None:
        machine: Any = self._machine
        if not machine.agent_up:
            return
        match request:
            case StartMember():
                machine.start(request)
            case KillMember():
                machine.kill(request.key, request.reason)
            case ForgetMember():
                machine.forget(request.key)
            case ShipLogs():
                machine.ship(request.key)
        self._carry("down", lambda: self._answered(name))

    def _answered(self, name: tuple[str, str]) -> None:
        self._requests.pop(name, None)
        self._sent.discard(name)
