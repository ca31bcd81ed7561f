"""Lets requests in, and answers out, only while this server leads.

Owns: the outermost part of a leader's application. Must not know: routes.

A request that comes while the seat is not held is refused untouched. An answer that is ready when it is not held waits:
either the lease is renewed and the answer is still true, or the process ends and the caller sees a broken connection,
which is what it is: nobody can say now what became of the request.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airyard.server.errors import error_response
from airyard.server.leading import Leading
from airyard.server.requests import PREFIX

PAUSE_S = 0.05
IDENTIFY = f"{PREFIX}/identify"
"""Who this server is stays true; without the proof a client would not believe that it does not lead."""


class LeaderGate:
    """Middleware over everything that a leader serves."""

    def __init__(self, app: ASGIApp, leading: Leading) -> None:
        self._app = app
        self._leading = leading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or scope["path"] == IDENTIFY:
            await self._app(scope, receive, send)
            return
        if not self._leading.holds():
            await error_response(self._leading.silence())(scope, receive, send)
            return

        async def send_as_leader(message: Message) -> None:
            while not self._leading.holds():
                await asyncio.sleep(PAUSE_S)
            await send(message)

        await self._app(scope, receive, send_as_leader)
