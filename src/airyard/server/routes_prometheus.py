"""``/metrics``: the yard as Prometheus reads it. It needs a token, as everything that tells of nodes.

Owns: the route. Must not know: series (``app/metrics_text``), where numbers come from (``gauges``).
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse

from airyard.app.control import Control
from airyard.app.metrics_text import Beside, metrics_text
from airyard.core.errors import Unavailable
from airyard.server.context import ServerContext
from airyard.server.requests import Context, query

router = APIRouter(tags=["yard"])
FORM = "text/plain; version=0.0.4"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: Context) -> PlainTextResponse:
    """Return all series of the yard, in Prometheus's text form."""
    now_ms = context.clock.now_ms()
    samples = [(one.node, one.name, one.value) for one in context.gauges.fresh(now_ms)]
    notices, unread = await run_in_threadpool(_notices, context)

    def read(control: Control) -> str:
        beside = Beside(
            samples=samples,
            events=context.gauges.events(),
            notices=notices,
            journal_available=not (control.journal_problem or unread),
        )
        return metrics_text(control.state, beside, now_ms)

    return PlainTextResponse(await query(context, read), media_type=FORM)


def _notices(context: ServerContext) -> tuple[Mapping[str, int], bool]:
    """Return how many messages there are by their state, and whether the database is away."""
    try:
        return (context.notices.counts() if context.notices is not None else {}), False
    except Unavailable:
        return {}, True
