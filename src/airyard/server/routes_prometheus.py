"""``/metrics``: the yard as Prometheus reads it. It needs a token, as everything that tells of nodes.

Owns: the route. Must not know: series (``app/metrics_text``), where numbers come from (``gauges``).
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from airyard.app.control import Control
from airyard.app.metrics_text import metrics_text
from airyard.server.requests import Context, query

router = APIRouter(tags=["yard"])
FORM = "text/plain; version=0.0.4"


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: Context) -> PlainTextResponse:
    """Return all series of the yard, in Prometheus's text form."""
    samples = [(one.node, one.name, one.value) for one in context.gauges.fresh(context.clock.now_ms())]
    events = context.gauges.events()

    def read(control: Control) -> str:
        return metrics_text(control.state, samples, events)

    return PlainTextResponse(await query(context, read), media_type=FORM)
