"""Stopping the server with regard to its live runs.

Owns: refusing, cancelling and waiting before the stop. Must not know: how the process ends (``context.shutdown``).
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi.concurrency import run_in_threadpool

from airyard.app.run_lookup import LIVE
from airyard.core.commands import CancelRun
from airyard.core.errors import Conflict, Fix, NotFound, Unavailable
from airyard.ports.journal import RunRow
from airyard.ports.read_store import RunFilter
from airyard.server.context import ServerContext
from airyard.server.requests import ask
from airyard.server.wakeups import SAFETY_S, Wakeups

ALL_LIVE = 1_000_000
END_WAIT_S = 170.0
"""Longer than the default grace of a run and the kill after it; shorter than the client's patience."""
PAUSE_S = 0.05


async def shut_down(context: ServerContext, runs: str, by: str) -> dict[str, Any]:
    """Refuse while runs are live, leave them to the next server, or cancel them; then stop.

    Raises: Conflict listing the live runs; Unavailable when cancelled runs do not end in time (nothing is stopped).
    """
    live = await _live(context)
    if live and runs == "refuse":
        raise _refusal(live)
    if live and runs == "cancel":
        await _cancel(context, live, by)
    context.shutdown()
    return {
        "stopping": True,
        "kept": [row.run_id for row in live] if runs == "keep" else [],
        "cancelled": [row.run_id for row in live] if runs == "cancel" else [],
    }


async def _live(context: ServerContext) -> list[RunRow]:
    found = await run_in_threadpool(context.reads.runs, RunFilter(states=LIVE, limit=ALL_LIVE))
    # Waiting runs first: else they would start on what the active ones leave.
    return sorted(found, key=lambda row: (row.state != "QUEUED", row.run_id))


def _refusal(live: list[RunRow]) -> Conflict:
    shown = ", ".join(f"{row.run_id} ({row.status.lower()})" for row in live[:20])
    more = f" and {len(live) - 20} more" if len(live) > 20 else ""
    count = f"{len(live)} runs are" if len(live) > 1 else "a run is"
    return Conflict(
        f"{count} live: {shown}{more}",
        code="RUNS_ARE_LIVE",
        details={"runs": [row.run_id for row in live]},
        fix=Fix(
            text="`airyard down --keep-runs` leaves them to the next server, `--cancel-runs` ends them first",
            command="airyard down --keep-runs",
        ),
    )


async def _cancel(context: ServerContext, live: list[RunRow], by: str) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + END_WAIT_S
    left = [row.run_id for row in live]
    with Wakeups(context.changes, left) as wakeups:
        for run_id in left:
            try:
                await ask(context, CancelRun(run_id=run_id, by=by))
            except NotFound:
                pass  # it has ended by itself
        while left:
            wakeups.clear()
            wanted = RunFilter(states=LIVE, limit=ALL_LIVE)
            still = {row.run_id for row in await run_in_threadpool(context.reads.runs, wanted)}
            left = [run_id for run_id in left if run_id in still]
            if left and clock() >= deadline:
                raise Unavailable(
                    f"after {END_WAIT_S:.0f} s still live: {', '.join(map(str, left))}",
                    code="STILL_STOPPING",
                    details={"runs": left},
                )
            if left:
                await wakeups.wait(SAFETY_S)
                await asyncio.sleep(PAUSE_S)
