"""How a failure leaves the server: always the wire form, with the HTTP status of its kind.

Owns: exception handlers, request ids, the log line of an unexpected failure. Must not know: routes.
A traceback stays in the server's log; the client gets the request's id to name it by.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airyard.core.errors import AiryardError, Denied, NotFound, UserError
from airyard.server.route_rights import PREFIX

_log = structlog.get_logger("airyard.http")
REQUEST_ID = "x-request-id"


class TooLarge(UserError):
    """The body of a request is over its limit."""

    default_code = "TOO_LARGE"
    http_status = 413


class WrongMethod(UserError):
    """The path exists, but not with this method."""

    default_code = "METHOD_NOT_ALLOWED"
    http_status = 405


def error_response(error: AiryardError) -> JSONResponse:
    """Return the wire form of an error."""
    headers = {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_ms / 1000))
    body = {"error_code": error.code, "message": error.message, "error": error.as_json()}
    return JSONResponse(body, status_code=error.http_status, headers=headers)


def add_error_handlers(app: FastAPI) -> None:
    """Have every exception of a route answered in the wire form."""
    app.add_exception_handler(AiryardError, _on_known)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AiryardError)
    if error.http_status >= 500 and not error.retryable:
        _log.error(
            "internal_error",
            request_id=request.scope.get("request_id"),
            path=request.url.path,
            code=error.code,
            message=error.message,
            exc_info=error,
        )
    return error_response(error)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid(error.errors()))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_response(NotFound(f"there is nothing at {request.url.path}", code="NO_SUCH_PATH"))
    if error.status_code == 405:
        return error_response(WrongMethod(f"{what} is not a request of this API"))
    if error.status_code == 413:
        return error_response(TooLarge(str(error.detail)))
    kind = Denied if error.status_code in (401, 403) else UserError
    return error_response(kind(f"{what}: {error.detail}"))


def invalid(problems: Sequence[Any]) -> UserError:
    """Return one error that names every field that is wrong, by its path. Values are left out: they may be secret."""
    fields = [
        {"path": ".".join(str(part) for part in problem["loc"] if part != "body"), "message": _words(problem)}
        for problem in problems
    ]
    shown = "; ".join(f"{field['path'] or 'the body'}: {field['message']}" for field in fields[:10])
    more = f"; and {len(fields) - 10} more" if len(fields) > 10 else ""
    return UserError(
        f"the request is not valid: {shown}{more}",
        fix=f"correct what is named; {PREFIX}/openapi.json has the form of every request",
        details={"fields": fields[:100]},
    )


def _words(problem: Any) -> str:
    text = str(problem["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


class RequestShell:
    """The outermost part of the application: gives each request an id, and turns a bug into a 500 and a log line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope["request_id"] = request_id
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [
                    *message.get("headers", ()),
                    (REQUEST_ID.encode(), request_id.encode()),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientDisconnect:
            pass  # nobody is left to be answered
        except Exception:
            _log.exception(
                "request_failed", request_id=request_id, method=scope["method"], path=scope["path"]
            )
            if not started:
                await error_response(_bug(request_id))(scope, receive, send_named)
            # Else the connection is cut where it is: the client sees that the answer is not whole.


def _bug(request_id: str) -> AiryardError:
    return AiryardError(
        f"the server failed on this request; its log has the reason under {request_id}",
        details={"request_id": request_id},
    )
