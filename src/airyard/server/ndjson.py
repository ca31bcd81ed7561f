"""Endless answers: one JSON object a line, an empty line as a sign of life.

Owns: the form, and when to look again. Must not know: what the objects mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse

from airyard.server.wakeups import SAFETY_S, Wakeups

TICK_S = 10.0
HOLD_S = 0.3
HOLD_POLL_S = 0.05
"""While lines of several live members may be held back, the reader looks again this often."""
# One encoder for all: making one a line costs as much as the line.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one look found. ``more``: look again at once. ``held``: something may become due by time alone, soon."""

    data: bytes
    done: bool = False
    more: bool = False
    held: bool = False


def ndjson(objects: Iterable[Any]) -> bytes:
    """Return objects as lines. Plain ASCII, so that odd characters in a log cannot break it."""
    return "".join([_ENCODE(each) + "\n" for each in objects]).encode()


def streaming(blocks: AsyncIterator[bytes]) -> StreamingResponse:
    """Return the answer that writes blocks as they come. A client that leaves ends the iterator."""
    return StreamingResponse(blocks, media_type="application/x-ndjson", headers=_HEADERS)


async def follow(wakeups: Wakeups, look: Callable[[], Awaitable[Block]]) -> AsyncIterator[bytes]:
    """Look, send what there is, wait for a change, until ``look`` says it is done.

    The next look comes only after the client has taken the last block, so a slow reader holds up nobody else.
    """
    clock = asyncio.get_running_loop().time
    sent = woken = clock()
    with wakeups:
        while True:
            wakeups.clear()
            block = await look()
            if block.data:
                yield block.data
                sent = clock()
            if block.done:
                return
            if block.more:
                continue
            pause = HOLD_POLL_S if block.held and clock() - woken < HOLD_S else SAFETY_S
            if await wakeups.wait(min(pause, max(TICK_S - (clock() - sent), 0.001))):
                woken = clock()
            if clock() - sent >= TICK_S:
                yield b"\n"
                sent = clock()
