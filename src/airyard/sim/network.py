"""Requests from runners and people to the server, over a network that may lose, delay and repeat them.

Owns: the life of one request and its answer. Must not know: what they say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airyard.sim.chance import Fault
from airyard.sim.setting import Setting

if TYPE_CHECKING:
    from airyard.sim.server import SimServer

Answer = Callable[[Any], None]
Request = Callable[["SimServer", Answer], None]
AWAY = None
"""What the caller gets when no answer came."""


class Network:
    """Connects callers with whatever server is up. ``cut`` holds the names of machines that are cut off."""

    def __init__(self, setting: Setting, server: Callable[[], SimServer | None]) -> None:
        self._setting = setting
        self._server = server
        self.cut: set[str] = set()

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
        if origin in self.cut or chance.strikes(Fault.LOSS):
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
        server = self._server()
        if server is None:
            settle(AWAY)
            return

        def answer(value: Any) -> None:
            if server.dead or origin in self.cut or self._setting.chance.strikes(Fault.LOSS):
                return
            self._setting.later(self._latency_ms(), lambda: settle(value))

        request(server, answer)
