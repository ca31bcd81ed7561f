"""The application: routers, the gate before them, limits, OpenAPI.

Owns: what is put together into one ASGI application. Must not know: how the parts in the context are made.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

import airyard
from airyard.core.errors import AiryardError, Denied
from airyard.server import (
    routes_access,
    routes_admin,
    routes_changes,
    routes_code,
    routes_explain,
    routes_files,
    routes_health,
    routes_login,
    routes_logs,
    routes_metrics,
    routes_nodes,
    routes_pages,
    routes_policy,
    routes_prometheus,
    routes_reservations,
    routes_runs,
    routes_secrets,
    routes_status,
    routes_stream,
    routes_submit,
    routes_triage,
    routes_yard,
)
from airyard.server.access import authorise_route
from airyard.server.audit import AuditTrail, note_of
from airyard.server.auth import unauthenticated
from airyard.server.context import Principal, ServerContext
from airyard.server.errors import RequestShell, add_error_handlers, error_response
from airyard.server.requests import PREFIX
from airyard.wire import native

MAX_BODY_BYTES = 8 << 20
_OPEN = f"{PREFIX}/identify"
_METRICS = "/metrics"
_LOGIN = f"{PREFIX}/login"
_RUNNER = f"{PREFIX}/runner/"
_CODE = f"{PREFIX}/code/"
_STATUSES = (400, 401, 403, 404, 409, 503)


def create_app(
    context: ServerContext, *, lifespan: Lifespan[FastAPI] | None = None, runner: APIRouter | None = None
) -> FastAPI:
    """Return the application over a server's parts; further routers may be included afterwards.

    ``runner``: the routes that are asked most by far. They stand first, for routes are tried one after the other.

    Every route has an entry in ``route_rights``; those of runners and of MLflow's proxy check their callers
    themselves.
    """
    app = FastAPI(
        title="Airyard",
        version=airyard.__version__,
        summary="Submit a short YAML, get GPUs, an environment, live logs and a tracked experiment.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(authorise_route)],
        responses={status: {"model": native.ErrorAnswer} for status in _STATUSES},
    )
    app.state.context = context
    app.state.disk_meter = routes_status.DiskMeter(context.home)
    if runner is not None:
        app.include_router(runner)
    for part in (
        routes_status,
        routes_submit,
        routes_triage,
        routes_runs,
        routes_changes,
        routes_logs,
        routes_stream,
        routes_metrics,
        routes_files,
        routes_code,
        routes_nodes,
        routes_health,
        routes_yard,
        routes_explain,
        routes_policy,
        routes_prometheus,
        routes_reservations,
        routes_secrets,
        routes_access,
        routes_login,
        routes_admin,
        routes_pages,
    ):
        app.include_router(part.router)
    app.add_api_route(f"{PREFIX}/openapi.json", _openapi, include_in_schema=False)
    add_error_handlers(app)
    # The last one added is the outermost.
    app.add_middleware(routes_pages.ToLogin, context=context)
    app.add_middleware(BodyLimit)
    app.add_middleware(Gate, context=context)
    app.add_middleware(AuditTrail, log=context.access.audit)
    app.add_middleware(RequestShell)
    return app


async def _openapi(request: Request) -> JSONResponse:
    """Return the description of this API."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


class Gate:
    """Lets nothing below ``/api``, nor ``/metrics``, pass without a person's token.

    But the identity question, logins and runners' way.

    It stands before the routes, so that without a token nobody learns which paths exist or gets a body parsed.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        path = scope.get("path", "")
        gated = scope["type"] == "http" and (path in ("/api", _METRICS) or path.startswith("/api/"))
        if not gated or path in (_OPEN, _LOGIN) or path.startswith((_RUNNER, f"{_LOGIN}/")):
            await self._app(scope, receive, send)
            return
        try:
            principal = self._context.access.authorise(_header(scope, b"authorization"), None)
            if (note := note_of(scope)) is not None:
                note.principal = principal
            if principal.member is not None:
                raise Denied(
                    "the token of a run's command reaches MLflow alone"
                    if principal.is_command
                    else "an attempt's token reaches only the runner's part of this API and MLflow",
                    code="NOT_A_PERSON",
                )
        except AiryardError as error:
            await error_response(error)(scope, receive, send)
            return
        scope["principal"] = principal
        await self._serve(principal, scope, receive, send)

    async def _serve(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as long as its token counts: a revoked one ends long polls and streams, too."""
        started = False

        async def send_while_valid(message: Message) -> None:
            nonlocal started
            if not self._context.access.still(principal):
                raise _Revoked
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, send_while_valid)
        except _Revoked:
            if not started:
                await error_response(unauthenticated(given=True))(scope, receive, send)
            # Else the answer is cut where it is, as one of a server that ends.


class _Revoked(Exception):
    """The token of a request that is being answered counts no more."""


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


class BodyLimit:
    """Cuts bodies of the native API at 8 MiB. Code archives and runners' batches have limits of their own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        limited = scope["type"] == "http" and path.startswith(PREFIX)
        if not limited or path.startswith((_RUNNER, _CODE)):
            await self._app(scope, receive, send)
            return
        size = 0

        async def receive_limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                # FastAPI passes only this kind of exception on from the reading of a body.
                raise HTTPException(413, f"the body of a request may have {MAX_BODY_BYTES >> 20} MiB")
            return message

        await self._app(scope, receive_limited, send)
