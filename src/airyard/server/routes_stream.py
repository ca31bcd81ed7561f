"""Following one run to its end: ``/stream``.

Owns: the wire side. Must not know: what is in a feed (``app.run_feed``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from airyard.app.run_feed import RunFeed
from airyard.app.views import Lights
from airyard.core.errors import NotFound
from airyard.core.triage.alerts import alert_kind
from airyard.server.context import ServerContext
from airyard.server.ndjson import Block, follow, ndjson, streaming
from airyard.server.requests import PREFIX, Caller, Context, Ref, lights_for, run_of
from airyard.server.wakeups import Wakeups

router = APIRouter(prefix=PREFIX, tags=["runs"])


@router.get("/runs/{ref}/stream", response_class=StreamingResponse)
async def stream_run(
    context: Context, caller: Caller, ref: Ref, cursor: str | None = None, logs: bool = True
) -> StreamingResponse:
    """Follow a run: NDJSON of STATUS, LOG, GAP, ALERT, RETRY, and TERMINAL last.

    ``cursor`` of an object goes on right after it. An empty line comes at least every 10 s.
    """
    run = await run_of(context, caller, ref)

    def begin() -> RunFeed:
        return RunFeed(
            reads=context.reads,
            logs=context.logs,
            offsets_ns=context.clock_offsets_ns,
            run=run,
            cursor=cursor,
            with_logs=logs,
            alert_of=alert_kind,
        )

    # Made before the answer begins: a cursor that is none must be an error, not a broken stream.
    feed = await run_in_threadpool(begin)
    return streaming(_blocks(context, feed))


async def _blocks(context: ServerContext, feed: RunFeed) -> AsyncIterator[bytes]:
    def look(lights: Lights) -> Block:
        found = feed.step(context.clock.now_ms(), lights)
        return Block(
            data=ndjson(found.objects),
            done=found.done,
            more=found.more,
            held=found.live_members > 1,
            due=found.due,
        )

    async def next_block() -> Block:
        lights = await lights_for(context, [feed.run], outlook=True)
        try:
            return await run_in_threadpool(look, lights)
        except NotFound:
            return Block(data=b"", done=True)  # removed meanwhile; asking again says so

    async for block in follow(Wakeups(context.changes, [feed.run.run_id]), next_block):
        yield block
