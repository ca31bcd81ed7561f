"""Logging in: at a provider, by way of this server, which gives out a token of its own for it; and who one is then.

Owns: the wire side, and the tokens that logins give out. Must not know: what a provider is asked (``logins``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from airyard.app.views import Document, rfc3339
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Scope, Thing, Verb
from airyard.core.access.tokens import Spent, Token
from airyard.core.commands import CreateToken
from airyard.core.errors import Denied
from airyard.server.audit import note_of
from airyard.server.auth import digest_of, fresh_token
from airyard.server.context import ServerContext
from airyard.server.logins import LIFE_S, LoginDesk, Welcome, no_login
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.server.routes_access import token_document
from airyard.wire import logins as wire

router = APIRouter(prefix=PREFIX, tags=["login"])
T = TypeVar("T")


@router.get("/login", responses={200: {"model": wire.LoginWays}})
async def ways(context: Context) -> dict[str, Any]:
    """Return how one logs in to this yard. Open to everybody."""
    return dict(desk_of(context).ways())


@router.post("/login/browser", responses={200: {"model": wire.BrowserLogin}})
async def begin_browser(context: Context, request: Request, body: wire.BrowserLoginRequest) -> dict[str, Any]:
    """Begin a login whose browser comes back to the caller's own machine."""
    desk = desk_of(context)
    redirect_uri = f"http://127.0.0.1:{body.port}/callback"
    handle, url = await apart(desk, lambda: desk.begin_browser(address_of(request), redirect_uri))
    return {"handle": handle, "url": url, "expires_s": LIFE_S}


@router.post("/login/device", responses={200: {"model": wire.DeviceLogin}})
async def begin_device(context: Context, request: Request) -> dict[str, Any]:
    """Begin a login for a terminal without a browser: the person types a code on another device."""
    desk = desk_of(context)
    handle, device = await apart(desk, lambda: desk.begin_device(address_of(request)))
    return {
        "handle": handle,
        "user_code": device.user_code,
        "verification_uri": device.verification_uri,
        "verification_uri_complete": device.verification_uri_complete,
        "interval_s": device.interval_s,
        "expires_s": device.expires_s,
    }


@router.post("/login/finish", responses={200: {"model": wire.LoginAnswer}})
async def finish(context: Context, request: Request, body: wire.FinishRequest) -> dict[str, Any]:
    """Finish a browser's login; the answer holds the token, this once."""
    desk = desk_of(context)

    def ask_provider() -> Welcome:
        return desk.finish_browser(body.handle, state=body.state, code=body.code, error=body.error)

    return await _answer(context, request, await noted_welcome(request, desk, ask_provider))


@router.post("/login/poll", responses={200: {"model": wire.LoginAnswer}})
async def poll(context: Context, request: Request, body: wire.PollRequest) -> dict[str, Any]:
    """Ask whether a device login is finished; the answer holds the token, this once, or when to ask again."""
    desk = desk_of(context)
    found = await noted_welcome(request, desk, lambda: desk.poll_device(body.handle))
    if isinstance(found, float):
        return {"wait_s": round(found, 3), "token": None, "secret": None}
    return await _answer(context, request, found)


@router.post("/login/service", responses={200: {"model": wire.LoginAnswer}})
async def service(context: Context, request: Request, body: wire.ServiceLoginRequest) -> dict[str, Any]:
    """Change the token of a job of another system for one of this yard."""
    desk = desk_of(context)
    return await _answer(
        context, request, await noted_welcome(request, desk, lambda: desk.service(body.token))
    )


@router.get("/whoami", responses={200: {"model": wire.WhoAmI}})
async def who_am_i(context: Context, caller: Caller) -> dict[str, Any]:
    """Return who the caller is here, and how that is known."""
    principal = caller.principal
    token = await query(context, lambda control: control.state.tokens.get(principal.token_id))
    login = token.login if token is not None else None
    return {
        "name": principal.name,
        "role": principal.role.value,
        "kind": principal.kind.value,
        "groups": sorted(principal.groups),
        "scope": principal.scope.value,
        "project": principal.project,
        "how": _how(token),
        "issuer": login.issuer if login is not None else None,
        "subject": login.subject if login is not None else None,
        "token_id": principal.token_id or None,
        "token_name": token.name if token is not None else None,
        "expires_at": rfc3339(token.expires_ms) if token is not None else None,
    }


def _how(token: Token | None) -> str:
    if token is None:
        return "owner"
    if token.login is None:
        return "token"
    return "login" if token.login.role is not None else "job"


def desk_of(context: ServerContext) -> LoginDesk:
    """Return where logins are kept. Raises: NotFound when this yard has no provider."""
    if context.access.logins is None:
        raise no_login()
    return context.access.logins


def address_of(request: Request) -> str:
    """Return where a request comes from."""
    return request.client.host if request.client is not None else ""


async def apart(desk: LoginDesk, work: Callable[[], T]) -> T:
    """Do what asks a provider, and may take long, in the desk's own threads. Raises: Unavailable when too many do."""
    with desk.turn():
        return await asyncio.get_running_loop().run_in_executor(desk.pool, work)


async def noted_welcome(request: Request, desk: LoginDesk, work: Callable[[], T]) -> T:
    """Ask the provider; a refusal is noted for the audit with the name that was refused, if there is one."""
    note = note_of(request.scope)
    if note is not None:
        note.verb, note.thing = Verb.CREATE, Thing.TOKEN
    try:
        return await apart(desk, work)
    except Denied as error:
        if note is not None:
            note.object = str(error.details.get("user", ""))
        raise


async def _answer(context: ServerContext, request: Request, welcome: Welcome) -> Document:
    token, text = await give_token(context, request, welcome, name="login")
    return {
        "wait_s": None,
        "token": token_document(context, token, Spent(at_ms=token.created_ms)),
        "secret": text,
    }


async def give_token(
    context: ServerContext, request: Request, welcome: Welcome, *, name: str
) -> tuple[Token, str]:
    """Give out a token for a login; return it with its text. Raises: Denied for who is not let in here all the same."""
    desk = desk_of(context)
    now_ms = context.clock.now_ms()
    token_id, text = fresh_token()
    job = welcome.login.role is None
    token = Token(
        token_id=token_id,
        digest=digest_of(text),
        user=welcome.user,
        name=f"{'job' if job else name}-{token_id}",
        scope=Scope.WRITE if job else Scope.ADMIN,
        kind=Kind.SERVICE if job else Kind.PERSON,
        by=welcome.user,
        created_ms=now_ms,
        expires_ms=now_ms + desk.token_ms,
        login=welcome.login,
    )
    note = note_of(request.scope)
    if note is not None:
        note.object = welcome.user
    person = context.access.people().holder(token)
    if person is None:
        raise Denied(
            f"{welcome.user} does not get in here: the users file "
            + (
                "knows no such service"
                if job
                else "says so, or the name is the yard's owner's or a service's"
            ),
            code="LOGIN_NOT_ALLOWED",
            fix="an admin of this yard edits the users file ([people] file of the configuration)",
        )
    await ask(context, CreateToken(token=token))
    if note is not None:
        note.principal = Principal(
            name=person.name, role=person.role, kind=token.kind, groups=person.groups, token_id=token_id
        )
        note.object, note.wanted = token_id, True
    return token, text
