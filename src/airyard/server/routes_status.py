"""The server about itself: the proof of its identity, and its condition.

Owns: the wire side and the measuring of disk use. Must not know: how the parts are made.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

import airyard
from airyard.app.control import Control
from airyard.app.explain_views import figures_document
from airyard.app.node_views import versions_document
from airyard.app.views import rfc3339
from airyard.core.errors import Unavailable
from airyard.core.versions import CLIENT
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, query, quickly

router = APIRouter(prefix=PREFIX, tags=["server"])
DISK_CACHE_S = 30.0
_KINDS: Mapping[str, tuple[str, ...]] = {
    "code": ("server/blobs", "node/code"),
    "logs": ("server/logs",),
    "mlflow": ("server/mlflow",),
    "environments": ("node/envs", "node/uv-cache"),
    "attempts": ("node/attempts",),
    "outputs": ("node/runs",),
}


@router.get("/identify")
async def identify(
    context: Context,
    nonce: Annotated[str, Query(min_length=8, max_length=256)],
    token: Annotated[str | None, Query(max_length=64, description="the id of a token, not the token")] = None,
    protocol: Annotated[int, Query(description="the newest form of this API that the client speaks")] = 1,
) -> dict[str, Any]:
    """Prove that this server holds the token, or knows the one of this id, to a client that has not sent it."""
    return identity(context.access.proof(nonce, token), protocol)


def identity(proof: str, protocol: int) -> dict[str, Any]:
    """Return what a server says of itself to a client that speaks forms of the API up to ``protocol``.

    A client of the first release wants to hear exactly the form that it speaks.
    """
    return {
        "service": "airyard",
        "version": airyard.__version__,
        "protocol": CLIENT.common(protocol) or CLIENT.oldest,
        "proof": proof,
    }


@router.get("/status")
async def status(request: Request, context: Context, caller: Caller) -> dict[str, Any]:
    """Return version, addresses, disk use per kind, MLflow's state, containment, counts, journal, estimates' error."""

    def read(control: Control) -> tuple[int, int, dict[str, Any]]:
        state = control.state
        return state.seq, state.epoch, versions_document(state, frozenset(context.older_runners))

    seq, epoch, versions = await query(context, read)
    meter: DiskMeter = request.app.state.disk_meter
    slow = await run_in_threadpool(_slow_parts, context, meter)
    figures = await quickly(context, lambda planning: planning.estimates.figures())
    forecast = await quickly(context, lambda planning: planning.forecast.predictor.accuracy()) or {}
    unread = slow["unread"]
    return {
        "version": airyard.__version__,
        "versions": versions,
        "pid": os.getpid(),
        "started_at": rfc3339(context.started_ms),
        "url": context.url,
        "home": str(context.home),
        "ports": {"http": _port(context.url)},
        "paths": {
            "data": str(context.home / "server"),
            "node": str(context.home / "node"),
            "log": str(context.home / "server" / "server.log"),
        },
        "access": {
            "you": {
                "name": caller.name,
                "role": caller.principal.role.value,
                "kind": caller.principal.kind.value,
                "scope": caller.principal.scope.value,
                "project": caller.principal.project,
                "token_id": caller.principal.token_id or None,
            },
            "users_file": context.access.people().declared,
            "users_file_problem": context.access.problem() if caller.principal.sees_all else None,
            "insecure": context.access.insecure,
        },
        "containment": dict(context.containment()),
        "engine": context.engine_name,
        "simulated": dict(context.simulate),
        "estimates": figures_document(figures),
        "forecast": {
            pool: {
                "runs": one.runs,
                "before_p50": round(one.before_p50, 3),
                "before_p90": round(one.before_p90, 3),
                "median_factor": round(one.median_factor, 2),
            }
            for pool, one in sorted(forecast.items())
        },
        **{name: value for name, value in slow.items() if name != "unread"},
        "journal": {
            "seq": seq,
            "epoch": epoch,
            "bytes": slow["disk"]["journal"],
            "place": context.journal.place,
            "problem": context.loop.peek(lambda control: control.journal_problem) or unread or None,
        },
    }


def _slow_parts(context: ServerContext, meter: DiskMeter) -> dict[str, Any]:
    tracker = context.tracker.state()
    unread = ""
    counts: Mapping[str, int] = {}
    try:
        counts = context.reads.counts()
    except Unavailable as error:
        unread = error.message  # what is asked for most when the database is away must still be answered
    return {
        "unread": unread,
        "disk": {**meter.use(), "journal": context.journal.size_bytes()},
        "mlflow": {"kind": tracker.kind.value, "detail": tracker.detail, "uri": tracker.uri},
        "counts": {"queued": counts.get("QUEUED", 0), "active": counts.get("ACTIVE", 0)},
    }


def _port(url: str) -> int | None:
    tail = url.rstrip("/").rpartition(":")[2]
    return int(tail) if tail.isdigit() else None


class DiskMeter:
    """Measures the data folder by kind, at most once in 30 s. Any thread; blocks."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}
        self._until = 0.0

    def use(self) -> dict[str, int]:
        """Return the bytes on disk of each kind; files with several names count once. Cost: one walk."""
        with self._lock:
            if time.monotonic() >= self._until:
                seen: set[tuple[int, int]] = set()
                self._found = {
                    kind: sum(_bytes_below(self._home / place, seen) for place in places)
                    for kind, places in _KINDS.items()
                }
                self._until = time.monotonic() + DISK_CACHE_S
            return dict(self._found)


def _bytes_below(top: Path, seen: set[tuple[int, int]]) -> int:
    total = 0
    stack = [os.fspath(top)]
    while stack:
        try:
            path = stack.pop()
            found = os.lstat(path)
            if os.path.isdir(path) and not os.path.islink(path):
                with os.scandir(path) as entries:
                    stack.extend(entry.path for entry in entries)
        except OSError:
            continue  # removed meanwhile, or not ours to read
        if (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * 512
    return total
