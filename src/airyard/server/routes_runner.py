"""The runner's side of the API: orders by long poll, reports, log batches, code.

Owns: the wire form of the runner protocol and the estimate of node clocks. Must not know: what facts lead to.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse

import airyard
from airyard.app.control import Control
from airyard.app.leases import Leases
from airyard.app.orders import PREPARE_NUMBER, OrderDesk, lease_order
from airyard.app.reports import report_of
from airyard.app.run_lookup import run_from
from airyard.core.cluster import Node
from airyard.core.commands import MemberReports, Report, ReportKind
from airyard.core.decide import Acknowledged
from airyard.core.errors import AiryardError, Conflict, Denied, NotFound, Unavailable, UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import holds_output, iter_frames
from airyard.core.policy import PoolPolicy
from airyard.core.run import Attempt, LogClose, Member, MemberPhase, Run
from airyard.core.versions import RUNNER
from airyard.server.audit import note_of
from airyard.server.context import ServerContext
from airyard.server.gang_watch import weigh
from airyard.server.slow_ranks import weigh_slow
from airyard.server.wakeups import Wakeups

MAX_WAIT_S = 30.0
MAX_BATCH_BYTES = 16 << 20
LOGS_CLOSED_WAIT_S = 5.0
SAME_CLOCK_NS = 50_000_000
"""A measured offset below this is latency, not a difference of clocks."""

_log = structlog.get_logger("airyard.runner")


class AttemptOver(AiryardError):
    """The attempt is not known (any more): the runner must stop."""

    kind = "PERMANENT"
    default_code = "ATTEMPT_OVER"
    http_status = 410


def router(desk: OrderDesk, leases: Leases | None = None) -> APIRouter:
    """Return the routes below ``/api/v1/runner``; ``desk`` writes the orders, ``leases`` says what an answer grants."""
    routes = APIRouter(prefix="/api/v1/runner", include_in_schema=False)
    routes.add_api_route("/looks", _looks, methods=["POST"])

    @routes.get("/orders")
    async def orders(
        request: Request,
        after: int = 0,
        wait_s: float = 20.0,
        epoch: int = 0,
        lease_s: float = 0.0,
        protocol: int = 1,
    ) -> dict[str, Any]:
        context, key = _caller(request)
        spoken = _common_protocol(protocol, protocol - 1)
        if protocol < RUNNER.newest:
            context.older_runners.add(key)
        ours = _heard(context, key, leases, epoch, lease_s)
        found = await _wait_for_orders(context, desk, key, after, min(wait_s, MAX_WAIT_S), leases)
        context.signs.heard(key, context.clock.monotonic_ms())
        granted = [lease_order(leases.lease_s)] if leases is not None else []
        return {
            "protocol": spoken,
            "epoch": ours,
            "orders": [*granted, *found],
            "server_time_ns": time.time_ns(),
            **({"servers": context.servers} if context.servers else {}),
            **_look_wanted(context, key),
        }

    @routes.post("/reports")
    async def reports(request: Request) -> dict[str, Any]:
        context, key = _caller(request)
        received_ns = time.time_ns()
        body = _report_batch(await _limited_body(request))
        spoken = _common_protocol(body.get("protocol"), body.get("protocol"))
        acknowledged = await _take_reports(context, key, body, received_ns)
        return {"protocol": spoken, "acknowledged": acknowledged, "server_time_ns": time.time_ns()}

    @routes.post("/logs")
    async def logs(request: Request) -> JSONResponse:
        context, key = _caller(request)
        body = await _limited_body(request)
        if await _is_closed(context, key):
            return JSONResponse({"protocol": RUNNER.newest, "next": await _nothing_new(context, key, body)})
        try:
            expected = await run_in_threadpool(context.logs.append, key, body)
        except Conflict as error:
            if "next" not in error.details:
                raise
            return JSONResponse({"protocol": RUNNER.newest, "next": error.details["next"]}, status_code=409)
        if holds_output(body):
            context.signs.logged(key, context.clock.monotonic_ms())
        context.changes.publish([key.run_id])
        return JSONResponse({"protocol": RUNNER.newest, "next": expected})

    @routes.get("/code/{tree_hash}")
    async def code(request: Request, tree_hash: str) -> StreamingResponse:
        context, key = _caller(request)
        if not context.loop.peek(lambda control: _names_code(control, key, tree_hash)):
            raise NotFound(f"run {key.run_id} has no code {tree_hash}", code="CODE_NOT_FOUND")
        blob = await run_in_threadpool(context.blobs.open, tree_hash)
        return StreamingResponse(_blocks(blob), media_type="application/gzip")

    return routes


def _heard(context: ServerContext, key: MemberKey, leases: Leases | None, epoch: int, lease_s: float) -> int:
    """Note that a runner was heard; return the epoch here. Raises: where it knows a newer one or its lease is over."""
    ours = context.loop.peek(lambda control: control.state.epoch)
    if epoch > ours:
        raise _superseded(ours, epoch)
    now_ms = context.clock.monotonic_ms()
    if leases is not None and not leases.heard(key, now_ms, epoch=epoch, lease_s=lease_s):
        raise _lease_over(key)
    return ours


async def _looks(request: Request) -> dict[str, Any]:
    context, key = _caller(request)
    body = _look(await _limited_body(request))
    if not context.loop.peek(lambda control: _is_live(control, key)):
        raise AttemptOver(f"attempt {key.attempt_key} is over")
    context.steps.looks.put(key, body)
    await weigh(context, key)
    return {"protocol": RUNNER.newest}


def _look_wanted(context: ServerContext, key: MemberKey) -> dict[str, int]:
    """Tell a member, with the answer to its poll, that it is to look at its ranks."""
    now_ms = context.clock.monotonic_ms()
    number = context.steps.looks.wanted(key, now_ms)
    if number is None:
        return {}
    context.steps.looks.given(key, now_ms)
    return {"look": number}


def _names_code(control: Control, key: MemberKey, tree_hash: str) -> bool:
    """True for the code of the caller's own run: others' code is not its."""
    run = control.state.runs.get(key.run_id)
    return run is not None and run.workload.code is not None and run.workload.code.tree_hash == tree_hash


async def _is_closed(context: ServerContext, key: MemberKey) -> bool:
    """Say whether a log is whole: who has an old token may add nothing to it. Raises: AttemptOver for no such member.

    A run that has left memory may still get the rest of a log that was given up.
    """
    found = context.loop.peek(lambda control: control.state.member(key))
    if found is not None:
        return found[2].logs is not None
    row = await run_in_threadpool(context.reads.run, key.run_id)
    attempts = run_from(row).attempts if row is not None else ()
    if key.attempt >= len(attempts) or key.member >= len(attempts[key.attempt].members):
        raise AttemptOver(f"attempt {key.attempt_key} is not known")
    return attempts[key.attempt].members[key.member].logs is not None


async def _nothing_new(context: ServerContext, key: MemberKey, body: bytes) -> int:
    """Answer a batch that was sent again after the log was closed. Raises: AttemptOver for one with more in it."""
    expected = (await run_in_threadpool(context.logs.end, key)).next_seq
    records, _ = iter_frames(body)
    if any(record.next_seq > expected for record in records):
        raise AttemptOver(f"the log of member {key} is closed")
    return expected


def _blocks(blob: Any) -> Any:
    with blob:
        while block := blob.read(1 << 20):
            yield block


async def _limited_body(request: Request) -> bytes:
    """Read a batch of log records or reports. Raises: UserError over 16 MiB."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BATCH_BYTES:
            raise UserError(f"a batch is over {MAX_BATCH_BYTES >> 20} MiB", code="BATCH_TOO_LARGE")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _report_batch(body: bytes) -> Mapping[str, Any]:
    """Return a batch of reports. Raises: UserError for what no runner sends."""
    try:
        found = json.loads(body)
        int(found["epoch"])
        int(found.get("sent_ns", 0))
        for item in found.get("reports", ()):
            int(item["number"])
            item.get("kind")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"this is no batch of reports: {type(error).__name__}: {error}", code="BAD_REPORT"
        ) from error
    return dict(found)


def _look(body: bytes) -> Mapping[str, Any]:
    """Return what a member saw. Raises: UserError for what no runner sends."""
    try:
        return dict(json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"this is no look at a member: {error}", code="BAD_REPORT") from error


def _caller(request: Request) -> tuple[ServerContext, MemberKey]:
    context: ServerContext = request.app.state.context
    principal = context.access.authorise(request.headers.get("authorization"), None)
    if principal.member is None:
        raise Denied("this way is for runners; it takes an attempt token", code="NOT_A_RUNNER")
    if principal.is_command:
        if (note := note_of(request.scope)) is not None:
            note.principal = principal
        raise Denied(
            f"this is the token of the command of member {principal.member}, which speaks to MLflow alone; only its "
            "runner takes orders and reports",
            code="NOT_A_RUNNER",
            fix="nothing to do: metrics go to MLFLOW_TRACKING_URI, steps and checkpoints through `airyard` in the code",
        )
    return context, principal.member


def _common_protocol(spoken: object, oldest: object) -> int:
    """Return the newest form that the runner and this server speak. Raises: UserError.

    A runner follows what the server answers, so one of a newer release speaks the server's form.
    """
    found = RUNNER.common(spoken, oldest)
    if found is None:
        raise UserError(
            f"the runner speaks protocol {spoken!r}; this server (Airyard {airyard.__version__}) speaks {RUNNER}",
            code="PROTOCOL_MISMATCH",
            fix="its run was started more than one release ago: go back to the release before, and let it end there "
            "(docs/operate/upgrade.md)",
        )
    return found


def _superseded(ours: int, theirs: int) -> Unavailable:
    """Answer a runner that has heard a later leader: this one says nothing to it any more."""
    _log.warning("superseded", epoch=ours, seen_by_a_runner=theirs)
    return Unavailable(
        f"a leader of epoch {theirs} has begun; this server is of epoch {ours}",
        code="LEADER_SUPERSEDED",
        retry_after_ms=1000,
        fix="ask the server that leads now; this one ends when it learns of it from the journal",
    )


def _lease_over(key: MemberKey) -> Unavailable:
    """Answer a runner that was silent for longer than its lease: it may not go on, and the journal will say so."""
    return Unavailable(
        f"the lease of member {key} is over; it is being declared gone",
        code="LEASE_OVER",
        retry_after_ms=1000,
        fix="nothing to do: its run is placed again",
    )


async def _wait_for_orders(
    context: ServerContext,
    desk: OrderDesk,
    key: MemberKey,
    after: int,
    wait_s: float,
    leases: Leases | None,
) -> list[dict[str, Any]]:
    """Return the orders after a number, as soon as there are any, or none after ``wait_s``.

    A lease that has become another one meanwhile is news, too.
    """
    deadline_s = time.monotonic() + wait_s
    granted_ms = leases.lease_ms if leases is not None else 0
    with Wakeups(context.changes, [key.run_id]) as changed:
        while True:
            changed.clear()
            found = await _orders_now(context, desk, key, after)
            left_s = deadline_s - time.monotonic()
            if leases is not None and leases.lease_ms != granted_ms:
                return found
            looks = context.steps.looks.wanted(key, context.clock.monotonic_ms()) is not None
            if found or looks or left_s <= 0 or changed.over:
                return found
            await changed.wait(left_s)


async def _orders_now(
    context: ServerContext, desk: OrderDesk, key: MemberKey, after: int
) -> list[dict[str, Any]]:
    def read(control: Control) -> tuple[Run, Attempt, Member, Node | None, PoolPolicy] | None:
        state = control.state
        found = state.member(key)
        return (*found, state.nodes.get(found[2].node), state.policy.pool(found[1].pool)) if found else None

    found = context.loop.peek(read)
    if found is None or found[2].phase is MemberPhase.LOST:
        raise AttemptOver(f"attempt {key.attempt_key} is over")
    run, attempt, member, node, pool = found
    if member.phase is MemberPhase.STARTING:
        command = MemberReports(key=key, epoch=attempt.epoch, reports=())
        await asyncio.wrap_future(context.ask(command))
    if not attempt.live:
        return []
    if after >= PREPARE_NUMBER:
        return desk.orders(run, attempt, member, node, after, pool)
    usual = partial(context.fleet.usual, now_ms=context.clock.now_ms())
    # Its secrets are read from disk: not on the event loop.
    return await run_in_threadpool(desk.orders, run, attempt, member, node, after, pool, usual)


async def _take_reports(
    context: ServerContext, key: MemberKey, body: Mapping[str, Any], received_ns: int
) -> int:
    offset_ns = _offset(context, key, int(body.get("sent_ns", received_ns)), received_ns)
    now_ms = context.clock.now_ms()
    taken: list[Report] = []
    measured: Any = None
    number = 0
    for item in body.get("reports", ()):
        if item.get("kind") == "PROGRESS":
            if not context.loop.peek(lambda control: _is_live(control, key)):
                pass
            elif "ranks" in item:
                window_ended = context.steps.put(key, item["ranks"], context.clock.monotonic_ms())
                await weigh(context, key)
                if window_ended:
                    await weigh_slow(context, key)
            else:
                context.progress[key] = (str(item.get("phase", "")), str(item.get("detail", "")))
                context.changes.publish([key.run_id])
        else:
            report = report_of(item, offset_ns, now_ms)
            if report.logs is not None and not await _logs_arrived(context, key, report.logs):
                break
            taken.append(report)
            if report.kind is ReportKind.READY:
                measured = item.get("measured")
        number = int(item["number"])
    if taken:
        answer = await asyncio.wrap_future(
            context.ask(MemberReports(key=key, epoch=int(body["epoch"]), reports=tuple(taken)))
        )
        assert isinstance(answer, Acknowledged)
        if answer.over:
            raise AttemptOver(f"attempt {key.attempt_key} is over")
        if any(report.kind in (ReportKind.READY, ReportKind.EXITED) for report in taken):
            context.progress.pop(key, None)
        context.fleet.heard(context.loop, key, measured, now_ms)
    return number


def _is_live(control: Control, key: MemberKey) -> bool:
    found = control.state.member(key)
    return found is not None and found[1].live


def _offset(context: ServerContext, key: MemberKey, sent_ns: int, received_ns: int) -> int:
    """Return the node clock's lag behind the server's: the smallest difference seen, latency left out."""
    seen = received_ns - sent_ns
    best = context.clock_offsets_ns.get(key)
    if best is None or abs(seen) < abs(best):
        best = seen
        context.clock_offsets_ns[key] = 0 if abs(seen) < SAME_CLOCK_NS else seen
    return context.clock_offsets_ns[key]


async def _logs_arrived(context: ServerContext, key: MemberKey, logs: LogClose) -> bool:
    """Return whether the log is stored up to its end, waiting a little for batches that are on their way."""
    deadline = time.monotonic() + LOGS_CLOSED_WAIT_S
    while True:
        end = await run_in_threadpool(context.logs.end, key)
        if end.next_seq > logs.last_seq:
            if end.sha256 != logs.sha256:
                _log.warning("log_differs", key=str(key), stored=end.sha256, stated=logs.sha256)
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.02)
