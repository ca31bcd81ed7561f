"""What the tracker has of a run: its metrics, read back, and a link to its page.

Owns: which of a run's tracked runs is asked. Must not know: MLflow.
"""

from __future__ import annotations

import math
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from airyard.core.errors import NotFound
from airyard.core.run import Run
from airyard.ports.tracker import Metric
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, Ref, run_of

router = APIRouter(prefix=PREFIX, tags=["runs"])
MAX_HISTORIES = 50


@router.get("/runs/{ref}/metrics")
async def run_metrics(
    context: Context,
    caller: Caller,
    ref: Ref,
    key: Annotated[list[str] | None, Query(description="only these metrics")] = None,
    history: bool = False,
) -> dict[str, Any]:
    """Return the newest value of each metric; with ``history`` all points of (at most 50 of) them.

    The newest attempt that logged any counts: an attempt that failed early hides nothing. NaN and infinities are
    written as text, since JSON has no number for them.
    """
    run = await run_of(context, caller, ref)
    return await run_in_threadpool(_read, context, run, tuple(key or ()), history)


@router.post("/runs/{ref}/page")
async def run_page(context: Context, caller: Caller, ref: Ref) -> dict[str, Any]:
    """Return the address of the run's MLflow page, good for one browser within two minutes."""
    run = await run_of(context, caller, ref)
    tracked = next((each.tracking for each in reversed(run.attempts) if each.tracking.run_id), None)
    if tracked is None:
        state = run.attempt.tracking.state.value.lower() if run.attempt else "not begun"
        raise NotFound(f"run {run.run_id} has no tracked run: tracking is {state}", code="NO_PAGE")
    page = f"/mlflow/#/experiments/{tracked.experiment_id}/runs/{tracked.run_id}"
    code = context.access.link(caller.principal)
    return {
        "run_id": run.run_id,
        "url": f"{context.url}/open?code={quote(code)}&to={quote(page, safe='')}",
        "page": context.url + page,
    }


def _read(context: ServerContext, run: Run, keys: tuple[str, ...], history: bool) -> dict[str, Any]:
    tracked = [attempt for attempt in reversed(run.attempts) if attempt.tracking.run_id]
    out: dict[str, Any] = {"metrics": {}, "attempt": None}
    if history:
        out["history"] = {}
    for attempt in tracked:
        found = context.tracker.metrics(attempt.tracking.run_id)
        chosen = {name: found[name] for name in sorted(found) if not keys or name in keys}
        own = any(not name.startswith("system/") for name in chosen)
        if not chosen or (not own and attempt is not tracked[-1]):
            continue
        out["attempt"] = attempt.number
        out["metrics"] = {name: _point(metric) for name, metric in chosen.items()}
        if history:
            out["history"] = {
                name: [_point(each) for each in context.tracker.metric_history(attempt.tracking.run_id, name)]
                for name in list(chosen)[:MAX_HISTORIES]
            }
        return out
    return out


def _point(metric: Metric) -> dict[str, Any]:
    value: float | str = metric.value if math.isfinite(metric.value) else str(metric.value)
    return {"value": value, "step": metric.step, "time_ms": metric.time_ms}
