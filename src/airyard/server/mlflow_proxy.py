"""The authenticated way to MLflow: everything below ``/mlflow``.

Owns: checking the caller, forwarding in both directions as streams, spooling writes to runs while MLflow is
away. Must not know: how callers are known (``authorise``), what MLflow stores, whether it is embedded.

The prefix is taken off and MLflow serves at its own root: its pages name their assets and requests relative
to themselves, so they work below any prefix, and one rule serves an embedded and a remote MLflow. The
caller's credentials and cookies end here; upstream sees only the endpoint's own.

User code of an attempt that did not wait for MLflow calls its run by an alias. The real ids take its place here as
soon as there are any; until then writes are held for the replay, and what MLflow's client asks about the run
before it writes is answered from what is known.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from airyard.adapters.mlflow_endpoint import MlflowEndpoint, unreachable
from airyard.adapters.tracking_spool import SpooledWrite, Spools, WriteSpool
from airyard.core.errors import AiryardError, Denied, NotFound, Unavailable, UserError
from airyard.server.metric_signs import progress_in
from airyard.server.mlflow_people import CREATED_BY_USER_TAG, PersonScope, ask_of
from airyard.server.mlflow_policy import (
    CREATED_BY_TAG,
    AttemptScope,
    Effect,
    Purpose,
    RunFacts,
    is_path_of_server,
    may_write_run,
    purpose_of,
    run_ids_of,
    with_maker,
    without_ending,
)

_log = logging.getLogger(__name__)

PREFIX = "/mlflow"
_METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
_BODY_BYTES = 8 * 1024 * 1024
_KNOWN_RUNS = 10_000
_TURN_S = 1.0
_TURN_STEP_S = 0.02
_REMEMBERED_RUNS = 500
_REMEMBERED_BYTES = 256 * 1024
_AWAY_STATUSES = frozenset({502, 503, 504})
_TIMEOUT = httpx.Timeout(120.0, connect=5.0, pool=30.0)
# What can be kept or remembered need not wait as long for an MLflow that hangs.
_WRITE_TIMEOUT = httpx.Timeout(20.0, connect=5.0, pool=30.0)
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_FORWARDED = _HOP_BY_HOP | {
    "host",
    "authorization",
    "cookie",
    "origin",
    "referer",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
}
_NOT_RETURNED = _HOP_BY_HOP | {"set-cookie", "server", "date", "access-control-allow-origin"}
# MLflow's client shows a message only with an error code of its own vocabulary.
_MLFLOW_CODES = {
    400: "INVALID_PARAMETER_VALUE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "RESOURCE_DOES_NOT_EXIST",
    413: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}

Principal = TypeVar("Principal")
Value = TypeVar("Value")


class MlflowProxy(Generic[Principal]):
    """Forwards requests to one MLflow server.

    ``authorise`` (plain or async) returns who calls or raises ``Denied``. ``scope_of`` says what an attempt's token is
    bound to, None for a person; ``person_of`` what a person is bound to, None for one who may do everything.
    Lives in one event loop; ``aclose`` ends it.
    """

    def __init__(
        self,
        *,
        upstream: MlflowEndpoint,
        authorise: Callable[[Request], Principal | Awaitable[Principal]],
        scope_of: Callable[[Principal], AttemptScope | None],
        spools: Spools,
        person_of: Callable[[Principal], PersonScope | None] = lambda _: None,
        measured: Callable[[Principal, int | None], None] = lambda principal, step: None,
    ) -> None:
        """``measured`` hears of metrics that attempts write, with the newest step that they name."""
        self._upstream = upstream
        self._authorise = authorise
        self._scope_of = scope_of
        self._person_of = person_of
        self._measured = measured
        self._spools = spools
        self._client = upstream.async_client()
        self._spooling = anyio.CapacityLimiter(8)
        self._base = httpx.URL(upstream.base_url)
        self._known_runs: OrderedDict[str, RunFacts] = OrderedDict()
        self._answers: OrderedDict[str, bytes] = OrderedDict()

    async def aclose(self) -> None:
        """Close the connections to MLflow."""
        await self._client.aclose()

    async def handle(self, request: Request) -> Response:
        """Answer one request below the prefix."""
        try:
            return await self._handle(request)
        except AiryardError as error:
            return _error_response(error)

    async def _handle(self, request: Request) -> Response:
        principal = await self._principal(request)
        path = request.path_params["path"]
        if any(part in (".", "..") for part in path.split("/")) or "\\" in path or path.startswith("/"):
            raise UserError(f"{path!r} is not a path below {PREFIX}/", code="BAD_PATH")
        purpose = purpose_of(request.method, path)
        if purpose.effect is Effect.FORBIDDEN:
            raise NotFound(f"{PREFIX}/{path} is off: the server's machine would act on it", code="DISABLED")
        scope = self._scope_of(principal)
        person = self._person_of(principal) if scope is None else None
        body = await self._body_when_needed(request, purpose, scope, person)
        if person is not None:
            body = await self._check_person(person, request, path, purpose, body)
        held: str | None = None
        if scope is not None:
            told, step = progress_in(purpose.operation, body or b"")
            if told:
                self._measured(principal, step)
            if purpose.creates_run:
                body = with_maker(body or b"", scope.key)
            if _names_alias(request, body, scope):
                if scope.real is None:
                    return await self._answer_alias(request, path, purpose, scope, body or b"")
                request, body = _with_real_ids(request, body, scope)
                held = scope.key
            await self._check(scope, purpose, body or b"", request)
            if purpose.may_end_run:
                body = without_ending(scope, (asked := body or b""))
                if body is None:
                    return JSONResponse(_kept(path, asked))
        if purpose.spooled:
            return await self._write(request, path, body or b"", held)
        if _reads_run(purpose, path):
            return await self._read_run(request, scope)
        try:
            return await self._forward(request, body)
        except httpx.TransportError as error:
            raise unreachable(self._upstream, error) from error

    async def _answer_alias(
        self, request: Request, path: str, purpose: Purpose, scope: AttemptScope, body: bytes
    ) -> Response:
        """Answer a request that names a run which MLflow does not have yet: hold it, or say what is known.

        Raises: ``Unavailable`` where neither will do; MLflow's client then tries again for some time.
        """
        assert scope.alias is not None
        if purpose.spooled:
            await self._check(scope, purpose, body, request)
            kept: bytes | None = body
            if purpose.may_end_run:
                kept = without_ending(scope, body)
            if kept is not None:
                await self._spool(path, kept, scope.key)
            return JSONResponse(_kept(path, body), headers={"X-Airyard-Tracking": "held"})
        if _reads_run(purpose, path):
            return _known_json(_new_run(scope.alias.run_id, scope.alias.experiment_id))
        if purpose.effect is Effect.READ and path.endswith("api/2.0/mlflow/experiments/get"):
            return _known_json(_new_experiment(scope.alias.experiment_id))
        raise Unavailable(
            f"the tracked run of attempt {scope.key} is not open yet: MLflow was away when the attempt started",
            code="TRACKING_UNAVAILABLE",
            retry_after_ms=2000,
        )

    async def _principal(self, request: Request) -> Principal:
        """Let ``authorise`` decide; refuse what another site's page makes a browser send with its cookie."""
        found = self._authorise(request)
        principal: Principal = await found if inspect.isawaitable(found) else found
        origin = request.headers.get("origin")
        by_cookie = "authorization" not in request.headers
        changing = request.method not in ("GET", "HEAD", "OPTIONS")
        if (
            by_cookie
            and changing
            and origin is not None
            and urlsplit(origin).netloc != request.headers.get("host")
        ):
            raise Denied(f"a page of {origin} may not change what MLflow holds here", code="CROSS_ORIGIN")
        return principal

    async def _body_when_needed(
        self, request: Request, purpose: Purpose, scope: AttemptScope | None, person: PersonScope | None
    ) -> bytes | None:
        """Read the body where it decides something; None means that it is streamed through unread."""
        if scope is not None and scope.alias is not None and _is_small_json(request):
            return await request.body()
        names_runs = purpose.effect is Effect.RUN_WRITE and purpose.run_id is None
        in_body = names_runs and purpose.operation != "upload-artifact"
        if not (
            purpose.spooled
            or (person is not None and request.method == "POST" and purpose.operation != "upload-artifact")
            or (scope is not None and (in_body or purpose.creates_run or purpose.creates_experiment))
        ):
            return None
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > _BODY_BYTES:
                raise UserError(f"a write to a run is over {_BODY_BYTES} bytes", code="TOO_LARGE")
            parts.append(part)
        return b"".join(parts)

    async def _check_person(
        self, person: PersonScope, request: Request, path: str, purpose: Purpose, body: bytes | None
    ) -> bytes | None:
        """Return the body to send for a person who may not see every run. Raises: Denied; see ``mlflow_people``."""
        params = request.query_params
        query = {name: params.getlist(name) for name in params}
        ask = ask_of(person, purpose, request.method, path, query, body or b"")
        if ask.refused:
            raise Denied(
                f"{person.name} may not {request.method} {request.url.path}",
                code="OUT_OF_SCOPE",
                fix="look at one run at a time (`airyard open ID`), or search your own; lists of everybody's are for "
                "operators of this yard",
            )
        for run_id in ask.runs:
            if not person.may(await self._facts(run_id), write=ask.write):
                raise Denied(f"{person.name} has no such right on run {run_id}", code="OUT_OF_SCOPE")
        return body if ask.body is None else ask.body

    async def _check(self, scope: AttemptScope, purpose: Purpose, body: bytes, request: Request) -> None:
        """Raise ``Denied`` unless the attempt may do this; see ``mlflow_policy``."""
        if purpose.creates_experiment and is_path_of_server(body):
            raise Denied(
                f"attempt {scope.key} may not put artifacts into a folder of the server's machine",
                code="OUT_OF_SCOPE",
                fix="leave artifact_location out, or name an object store",
            )
        if purpose.effect in (Effect.READ, Effect.CREATE):
            return
        if purpose.effect is Effect.RUN_WRITE:
            named = {purpose.run_id} if purpose.run_id else run_ids_of(body, request.query_params)
            allowed = bool(named)
            for run_id in named:
                allowed = allowed and (
                    may_write_run(scope, run_id, None)
                    or may_write_run(scope, run_id, await self._facts(run_id))
                )
            if allowed:
                return
        raise Denied(
            f"the token of attempt {scope.key} may not {request.method} {request.url.path}",
            code="OUT_OF_SCOPE",
            fix="write to the run in MLFLOW_RUN_ID, a run of its experiment, or one that the attempt created",
        )

    async def _facts(self, run_id: str) -> RunFacts | None:
        """Ask MLflow once which experiment a run belongs to and who made it; neither changes."""
        if (known := self._known_runs.get(run_id)) is not None:
            self._known_runs.move_to_end(run_id)
            return known
        try:
            answer = await self._client.get("/api/2.0/mlflow/runs/get", params={"run_id": run_id})
        except httpx.TransportError as error:
            raise unreachable(self._upstream, error) from error
        if answer.status_code != 200:
            return None
        run = answer.json()["run"]
        tags = {tag["key"]: tag["value"] for tag in run.get("data", {}).get("tags", ())}
        number = tags.get("airyard.run_id", "")
        facts = RunFacts(
            experiment_id=str(run["info"]["experiment_id"]),
            created_by=tags.get(CREATED_BY_TAG),
            created_by_user=tags.get(CREATED_BY_USER_TAG),
            airyard_run=int(number) if number.isascii() and number.isdigit() else None,
        )
        _remember(self._known_runs, run_id, facts, _KNOWN_RUNS)
        return facts

    async def _write(self, request: Request, path: str, body: bytes, held: str | None) -> Response:
        """Forward a write to a run, or keep it: behind earlier ones, or because MLflow does not answer.

        ``held`` is the attempt whose alias it named: earlier writes of that attempt may still be held.
        """
        if held is not None and self._spools.held_of(held) is None:
            held = None
        if held is None and self._spools.main.is_empty:
            try:
                answer = await self._client.send(self._request_upstream(request, body, _WRITE_TIMEOUT))
            except httpx.TransportError as error:
                _log.info("spooling writes to runs: %s", unreachable(self._upstream, error).message)
            else:
                if answer.status_code not in _AWAY_STATUSES:
                    return _whole(answer)
        await self._spool(path, body, held)
        return JSONResponse(_kept(path, body), headers={"X-Airyard-Tracking": "spooled"})

    async def _spool(self, path: str, body: bytes, held: str | None) -> None:
        """Keep a write, with those of attempt ``held`` if given."""
        write = SpooledWrite(path="/" + path, body=body, at_ms=time.time_ns() // 1_000_000)

        def keep() -> WriteSpool:
            if held is not None:
                return self._spools.hold(held, write)
            self._spools.main.append(write)
            return self._spools.main

        spool = await anyio.to_thread.run_sync(keep, limiter=self._spooling)
        waited_s = 0.0
        while spool.is_draining and waited_s < _TURN_S:  # or many senders would outrun the replay
            await anyio.sleep(_TURN_STEP_S)
            waited_s += _TURN_STEP_S

    async def _read_run(self, request: Request, scope: AttemptScope | None) -> Response:
        """Forward a ``runs/get``; while MLflow is away, answer with what it said last.

        MLflow's client asks this at the start and at the end of a run and would end the user's program without it.
        An attempt's own run that nobody has read yet is answered with what its token says.
        """
        run_id = request.query_params.get("run_id") or request.query_params.get("run_uuid") or ""
        try:
            answer = await self._client.send(self._request_upstream(request, None, _WRITE_TIMEOUT))
            if answer.status_code not in _AWAY_STATUSES:
                if answer.status_code == 200 and len(answer.content) <= _REMEMBERED_BYTES:
                    _remember(self._answers, run_id, answer.content, _REMEMBERED_RUNS)
                return _whole(answer)
            reason = unreachable(self._upstream, AiryardError(f"HTTP status {answer.status_code}"))
        except httpx.TransportError as error:
            reason = unreachable(self._upstream, error)
        known = self._answers.get(run_id)
        if known is None and scope is not None and run_id == scope.run_id:
            known = _new_run(run_id, scope.experiment_id)
        if known is None:
            raise reason
        return _known_json(known)

    def _request_upstream(
        self, request: Request, body: bytes | None, timeout: httpx.Timeout | None = None
    ) -> httpx.Request:
        raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
        below = raw_path.split(PREFIX.encode() + b"/", 1)[1]
        query = request.scope.get("query_string", b"")
        target = self._base.raw_path.rstrip(b"/") + b"/" + below + (b"?" + query if query else b"")
        dropped = {"content-length"} if body is not None else set()
        headers = _forwarded(request.headers.items(), dropped)
        content: Any = body
        if body is None and ("content-length" in request.headers or "transfer-encoding" in request.headers):
            content = request.stream()
        url = self._base.copy_with(raw_path=target)
        return self._client.build_request(
            request.method, url, content=content, headers=headers, timeout=timeout or _TIMEOUT
        )

    async def _forward(self, request: Request, body: bytes | None) -> Response:
        try:
            answer = await self._client.send(self._request_upstream(request, body), stream=True)
        except ClientDisconnect:
            return Response(status_code=499)
        headers = dict(_returned(answer.headers.multi_items(), drop=()))
        if "location" in headers:
            headers["location"] = self._below_prefix(headers["location"])
        if request.method == "HEAD" or answer.status_code in (204, 304):
            await answer.aclose()
            return Response(status_code=answer.status_code, headers=headers)
        return StreamingResponse(_stream(answer), answer.status_code, headers=headers)

    def _below_prefix(self, location: str) -> str:
        """Rewrite a redirect of MLflow to the address that the caller can reach."""
        own = str(self._base).rstrip("/")
        if location.startswith(own + "/"):
            return PREFIX + location[len(own) :]
        return PREFIX + location if location.startswith("/") and not location.startswith("//") else location


def router(proxy: MlflowProxy[Any]) -> APIRouter:
    """Return the routes of ``/mlflow``; not part of the documented API."""
    routes = APIRouter(include_in_schema=False)

    async def to_slash(request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{PREFIX}/{query}", status_code=308)

    routes.add_route(PREFIX, to_slash, methods=["GET", "HEAD"])
    routes.add_route(PREFIX + "/{path:path}", proxy.handle, methods=_METHODS)
    return routes


def _remember(table: OrderedDict[str, Value], key: str, value: Value, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)


def _whole(answer: httpx.Response) -> Response:
    """Return an answer that was read whole, and so is decoded."""
    headers = dict(_returned(answer.headers.multi_items(), drop={"content-encoding", "content-length"}))
    return Response(answer.content, answer.status_code, headers=headers)


def _forwarded(headers: Iterable[tuple[str, str]], dropped: set[str]) -> list[tuple[str, str]]:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {
        part.strip().lower() for name, value in pairs if name == "connection" for part in value.split(",")
    }
    return [pair for pair in pairs if pair[0] not in _NOT_FORWARDED | named | dropped]


def _returned(headers: Iterable[tuple[str, str]], *, drop: Iterable[str]) -> list[tuple[str, str]]:
    dropped = _NOT_RETURNED | set(drop)
    return [(name.lower(), value) for name, value in headers if name.lower() not in dropped]


async def _stream(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()


def _reads_run(purpose: Purpose, path: str) -> bool:
    return purpose.effect is Effect.READ and path.endswith("api/2.0/mlflow/runs/get")


def _is_small_json(request: Request) -> bool:
    """Whether a body may name an alias and can be read whole; what is larger is streamed and names none."""
    length = request.headers.get("content-length", "")
    small = length.isdigit() and int(length) <= _BODY_BYTES
    return small and request.headers.get("content-type", "").startswith("application/json")


def _names_alias(request: Request, body: bytes | None, scope: AttemptScope) -> bool:
    if scope.alias is None:
        return False
    return scope.alias.named_in(request.scope.get("query_string", b"") + b"\n" + (body or b""))


def _with_real_ids(request: Request, body: bytes | None, scope: AttemptScope) -> tuple[Request, bytes | None]:
    """Put the ids of the attempt's run into the place of its alias, in the query and the body."""
    alias, real = scope.alias, scope.real
    assert alias is not None
    assert real is not None
    query = alias.replaced_in(request.scope.get("query_string", b""), real)
    named = Request({**request.scope, "query_string": query}, request.receive)
    return named, None if body is None else alias.replaced_in(body, real)


def _new_run(run_id: str, experiment_id: str | None) -> bytes:
    """Answer ``runs/get`` for a run that nobody has read yet."""
    info = {
        "run_id": run_id,
        "run_uuid": run_id,
        "experiment_id": experiment_id,
        "status": "RUNNING",
        "lifecycle_stage": "active",
    }
    return json.dumps({"run": {"info": info, "data": {}}}).encode()


def _new_experiment(experiment_id: str) -> bytes:
    """Answer ``experiments/get`` for the experiment of a run that does not exist yet."""
    found = {"experiment_id": experiment_id, "name": experiment_id, "lifecycle_stage": "active"}
    return json.dumps({"experiment": found}).encode()


def _known_json(body: bytes) -> Response:
    headers = {"Content-Type": "application/json", "X-Airyard-Tracking": "remembered"}
    return Response(body, headers=headers)


def _kept(path: str, body: bytes) -> dict[str, Any]:
    """Answer a spooled write as MLflow would; only ``runs/update`` has something to say."""
    if not path.endswith("/runs/update"):
        return {}
    try:
        request = json.loads(body)
    except ValueError:
        return {}
    run_id = request.get("run_id") or request.get("run_uuid")
    info = {key: request[key] for key in ("status", "end_time", "run_name") if key in request}
    return {"run_info": {"run_id": run_id, "run_uuid": run_id, **info}}


def _error_response(error: AiryardError) -> JSONResponse:
    """Answer in MLflow's form, with Airyard's own beside it."""
    status = (
        401 if error.code == "UNAUTHENTICATED" else 413 if error.code == "TOO_LARGE" else error.http_status
    )
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(max(1, (error.retry_after_ms or 2000) // 1000))
    body = {
        "error_code": _MLFLOW_CODES.get(status, "INTERNAL_ERROR"),
        "message": error.message,
        "error": error.as_json(),
    }
    return JSONResponse(body, status_code=status, headers=headers)
