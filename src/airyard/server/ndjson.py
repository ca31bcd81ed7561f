"""Endless answers: one JSON object a line, an empty line as a sign of life.

Owns: the form, and when to look again. Must not know: what the objects mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse

from airyard.server.wakeups import SAFETY_S, Wakeups

TICK_S = 10.0
HOLD_S = 0.3
HOLD_POLL_S = 0.05
"""While lines of several live members may be held back, the reader looks again this often."""
FRESH_S = 3.0
"""So long after a change, the reader looks every second: a line without an end becomes due by time alone."""
IDLE_S = 5.0
# One encoder for all: making one a line costs as much as the line.
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one look found.

    ``more``: look again at once. ``held``: lines may be held back for a moment. ``due``: time alone may bring news.
    """

    data: bytes
    done: bool = False
    more: bool = False
    held: bool = False
    due: bool = False


def ndjson(objects: Iterable[Any]) -> bytes:
    """Return objects as lines. Plain ASCII, so that odd characters in a log cannot break it."""
    return "".join([_ENCODE(each) + "\n" for each in objects]).encode()


def streaming(blocks: AsyncIterator[bytes]) -> StreamingResponse:
    """Return the answer that writes blocks as they come. A client that leaves ends the iterator."""
    return StreamingResponse(blocks, media_type="application/x-ndjson", headers=_HEADERS)


async def follow(wakeups: Wakeups, look: Callable[[], Awaitable[Block]]) -> AsyncGenerator[bytes, None]:
    """Look, send what there is, wait for a change, until ``look`` says it is done or the server stops.

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
            if block.done or wakeups.over:
                return
            if block.more:
                continue
            pause_s = _pause_s(block, clock() - woken)
            if await wakeups.wait(min(pause_s, max(TICK_S - (clock() - sent), 0.001))):
                woken = clock()
            if clock() - sent >= TICK_S:
                yield b"\n"
                sent = clock()


def _pause_s(block: Block, since_change_s: float) -> float:
    """Return when to look again should no change be told. Hundreds of idle readers must cost next to nothing."""
    if block.held and since_change_s < HOLD_S:
        return HOLD_POLL_S
    return SAFETY_S if block.due or since_change_s < FRESH_S else IDLE_S
