"""The relay: a Ray actor on every machine that passes lines between the bridge and the machine's agent.

Owns: having the agent run, one connection to it, bytes in both directions. Must not know: what the bytes say.

It is no parent of the agent: that one detaches itself, so neither a dead worker nor a dead raylet ends it or a runner.
This module is imported in Ray's workers; it imports nothing of Ray and little of Airyard.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import airyard
from airyard.adapters.agent_process import connected, start_agent
from airyard.adapters.ray_command import HOME_VARIABLE
from airyard.core.versions import RELAY

OFFER = Path("node") / "ray" / "offer.json"
"""What ``airyard node join`` wrote down about its machine, below its home."""
READ_BYTES = 256 * 1024
MAX_WAITING_BYTES = 4 << 20
_CONNECT_S = 10.0


class Relay:
    """One a machine. Ray runs its methods on one event loop, in the order of their calls."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting = bytearray()
        self._over = True
        self._changed = asyncio.Event()
        self._number = 0
        self._epoch = 0

    async def open(self, home: str, epoch: int = 0) -> dict[str, Any]:
        """Connect anew to the agent, started if need be; return what is to be known of the machine.

        An empty ``home`` is the one that the raylet was started for. ``number`` in the answer is the connection's:
        whoever opened an earlier one is served no more. ``epoch`` is of the leader that asks: one that was replaced,
        and does not know, must not take the agent away from the next. Raises: OSError, AiryardError.
        """
        if epoch < self._epoch:
            raise ConnectionError(f"this machine serves the leader of epoch {self._epoch}, {epoch} is over")
        self._epoch = epoch
        self._close()
        place = Path(home or os.environ.get(HOME_VARIABLE) or Path.home() / ".airyard").expanduser()
        if not home and HOME_VARIABLE in os.environ and _offer(place) is None:
            raise ConnectionError("this machine has left the fleet")
        stream = await asyncio.to_thread(_reach, place)
        reader, self._writer = await asyncio.open_unix_connection(sock=stream)
        self._waiting.clear()
        self._over = False
        self._number += 1
        self._reading = asyncio.create_task(self._read(reader))
        return {
            "number": self._number,
            "host": socket.gethostname(),
            "home": str(place),
            "version": airyard.__version__,
            "protocol": RELAY.newest,
            "offer": _offer(place),
        }

    async def send(self, number: int, data: bytes) -> None:
        """Pass bytes to the agent. Raises: ConnectionError when the connection is over."""
        if self._writer is None or self._over or number != self._number:
            raise ConnectionError("the agent is not connected")
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self, number: int, wait_s: float) -> bytes | None:
        """Return what the agent said, after at most ``wait_s``; None when the connection is over."""
        if number == self._number and not self._waiting and not self._over:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        if number != self._number or (not self._waiting and self._over):
            return None
        data = bytes(self._waiting)
        self._waiting.clear()
        self._changed.set()
        return data

    def _close(self) -> None:
        """Let go of the agent, which lives on."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._over = True
        self._changed.set()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self._waiting += data
                self._changed.set()
                while len(self._waiting) > MAX_WAITING_BYTES:
                    # Nobody fetches it: the agent is not read any further, and cuts the connection in the end.
                    await asyncio.sleep(0.05)
        except OSError:
            pass
        finally:
            self._over = True
            self._changed.set()


def _reach(home: Path) -> socket.socket:
    """Connect to the agent of this version, starting it when nobody listens. Blocks. Raises: OSError, AiryardError."""
    import time

    deadline = time.monotonic() + _CONNECT_S
    _end_an_older_agent(home)
    started = False
    while True:
        try:
            stream = connected(home)
            stream.setblocking(False)
            return stream
        except OSError:
            if time.monotonic() > deadline:
                raise
        if not started:
            start_agent(home, _environment())
            started = True
        time.sleep(0.01)


def _end_an_older_agent(home: Path) -> None:
    """Have an agent from before an upgrade leave; its runners live on and are adopted by the next one."""
    try:
        found = json.loads((home / "node" / "agent.json").read_text())
        if found["version"] == airyard.__version__:
            return
        with connected(home) as stream:
            stream.settimeout(_CONNECT_S)
            stream.sendall(b'{"id":0,"op":"stop"}\n')
            while stream.recv(READ_BYTES):
                pass
    except (OSError, ValueError, KeyError):
        return


def _environment() -> Mapping[str, str]:
    """Return what the raylet was started with, less what is Ray's: a worker's own variables are Ray's business."""
    try:
        found = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        given = dict(os.fsdecode(item).split("=", 1) for item in found if b"=" in item)
    except OSError:
        given = dict(os.environ)
    return {
        name: value for name, value in given.items() if not name.startswith("RAY_") and name != HOME_VARIABLE
    }


def _offer(home: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((home / OFFER).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
