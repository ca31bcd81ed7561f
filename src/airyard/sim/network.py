"""Requests from runners and people to the server, over a network that may lose, delay, repeat and part them.

Owns: the life of one request and its answer, who is cut off from whom, who still speaks to a leader of before.
Must not know: what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airyard.sim.chance import Fault
from airyard.sim.setting import Setting

if TYPE_CHECKING:
    from airyard.sim.server import SimServer

Answer = Callable[[Any], None]
Request = Callable[["SimServer", Answer], None]
AWAY = None
"""What the caller gets when no answer came."""


@dataclass(slots=True)
class Cuts:
    """The machines that are cut off, by what does not pass: requests, answers, or what the engine and agent say."""

    requests: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    link: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """Heal everything."""
        for names in (self.requests, self.answers, self.link):
            names.clear()


class Network:
    """Connects callers with whatever server leads, or with the one of before."""

    def __init__(self, setting: Setting, server: Callable[[], SimServer | None]) -> None:
        self._setting = setting
        self._server = server
        self.cuts = Cuts()
        self.lag_ms: dict[str, int] = {}
        """Machine → what answers to it take at the moment, beside all else."""
        self.sides: dict[str, SimServer] = {}
        """Machine → the old leader that its runners still reach."""

    def call(self, origin: str, request: Request, done: Answer, *, timeout_ms: int) -> None:
        """Send a request; ``done`` gets the answer or AWAY, once. The server may see it twice, or much later."""
        settled = False

        def settle(answer: Any) -> None:
            nonlocal settled
            if not settled:
                settled = True
                done(answer)

        chance = self._setting.chance
        self._setting.later(timeout_ms, lambda: settle(AWAY))
        if origin in self.cuts.requests or chance.strikes(Fault.LOSS):
            return
        self._send(origin, request, settle)
        if chance.strikes(Fault.DUPLICATE):
            self._send(origin, request, settle)
        if chance.strikes(Fault.ECHO):
            delay_ms = chance.between(60_000, 400_000)
            self._setting.later(delay_ms, lambda: self._deliver(origin, request, lambda _: None))

    def _latency_ms(self) -> int:
        chance = self._setting.chance
        return chance.between(100, 60_000) if chance.strikes(Fault.SLOW) else chance.between(1, 4)

    def _send(self, origin: str, request: Request, settle: Answer) -> None:
        self._setting.later(self._latency_ms(), lambda: self._deliver(origin, request, settle))

    def _deliver(self, origin: str, request: Request, settle: Answer) -> None:
        server = self.sides.get(origin) or self._server()
        if server is None or server.dead:
            settle(AWAY)
            return

        def answer(value: Any) -> None:
            if server.dead or origin in self.cuts.answers or self._setting.chance.strikes(Fault.LOSS):
                return
            lag_ms = self.lag_ms.get(origin, 0)
            self._setting.later(self._latency_ms() + lag_ms, lambda: settle(value))

        request(server, answer)
