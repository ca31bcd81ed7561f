"""A simulated machine's way to the server: real HTTP connections that a fault can cut or slow down.

Owns: whether the machine is connected, how late its messages are, the runner API's requests. Must not know: what they
say.

To the server it looks as a runner's requests do (``node.runner_http``): connections that are kept, one retry on a kept
one that the server has closed. A machine that is cut off gets no answer until the time of a request is up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from airyard.node.runner_http import Servers

_LIMIT_BYTES = 1 << 24


class Away(Exception):
    """No usable answer: cut off, refused, timed out, or a status that asks to try again."""


class Network:
    """What connects one machine."""

    def __init__(self) -> None:
        self._up = asyncio.Event()
        self._up.set()
        self._cuts: set[Callable[[], None]] = set()
        self.lag_s = 0.0
        """How late each message is, both ways."""

    @property
    def up(self) -> bool:
        """True unless it is cut off."""
        return self._up.is_set()

    def cut(self) -> None:
        """Part the machine from everything."""
        self._up.clear()
        for end in list(self._cuts):
            end()

    def mend(self) -> None:
        """Connect it again."""
        self._up.set()

    def watch(self, end: Callable[[], None]) -> Callable[[], None]:
        """Have ``end`` called when the machine is cut off; return how to have it forgotten."""
        self._cuts.add(end)
        return lambda: self._cuts.discard(end)

    async def wait_up(self) -> None:
        """Return when it is connected."""
        await self._up.wait()


class Channel:
    """One connection to the server's runner API, made when needed and again after a failure. One request at a time."""

    def __init__(self, network: Network, servers: Servers, token: str) -> None:
        self._network = network
        self.servers = servers
        """Where a leader may be found, and what it speaks."""
        self._token = token
        self._url = ""
        self._head = ""
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._forget: Callable[[], None] = lambda: None

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        """Return status and answer. Raises: Away."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._network.wait_up()
                return await self._asked(method, path, body)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self.close()
            self.servers.missed(self._url)
            raise Away(str(error) or type(error).__name__) from error

    async def _asked(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        if self.servers.urls[0] != self._url:
            self._turn_to(self.servers.urls[0])
        data = body or b""
        request = (
            f"{method} /api/v1/runner/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(data)}\r\n\r\n"
        )
        kept = self._streams is not None
        try:
            status, answer = await self._exchange(request.encode() + data)
        except (OSError, EOFError):
            self.close()
            if not kept or not self._network.up:
                raise
            status, answer = await self._exchange(request.encode() + data)
        if status in (408, 425, 429) or status >= 500:
            details = (answer.get("error") or {}).get("details") or {}
            if leader := details.get("leader"):
                self.servers.found(str(leader))
            raise EOFError(f"HTTP status {status}")
        return status, answer

    def _turn_to(self, url: str) -> None:
        self.close()
        self._url = url
        host = f"Host: {urlsplit(url).netloc}\r\n"
        self._head = f"{host}Authorization: Bearer {self._token}\r\nAccept: application/json\r\n"

    async def _exchange(self, request: bytes) -> tuple[int, dict[str, Any]]:
        if self._network.lag_s:
            await asyncio.sleep(self._network.lag_s)
        if self._streams is None:
            parts = urlsplit(self._url)
            self._streams = await asyncio.open_connection(
                parts.hostname or "127.0.0.1", parts.port or 80, limit=_LIMIT_BYTES
            )
            self._forget = self._network.watch(self._streams[1].transport.abort)
        reader, writer = self._streams
        if writer.transport.is_closing():
            raise ConnectionResetError("the connection was cut")
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0])
        answer = json.loads(await reader.readexactly(size)) if size else {}
        if self._network.lag_s:
            await asyncio.sleep(self._network.lag_s)
        if "connection: close" in head:
            self.close()
        return int(head[9:12]), answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """Cut the connection."""
        if self._streams is not None:
            self._forget()
            self._streams[1].transport.abort()
            self._streams = None
