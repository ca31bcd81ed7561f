"""Pages by which a browser gets a session: a one-time link, or a login at the provider.

Owns: cookies, and where a browser is sent. Must not know: what a provider is asked (``logins``), what is served then.
"""

from __future__ import annotations

import html
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airyard.core.errors import AiryardError
from airyard.server.auth import SESSION_COOKIE, SESSION_S
from airyard.server.context import ServerContext
from airyard.server.logins import LIFE_S, Welcome
from airyard.server.requests import Context
from airyard.server.routes_login import address_of, apart, desk_of, give_token, noted_welcome

LOGIN_COOKIE = "airyard_login"
HOME_PAGE = "/mlflow/"
router = APIRouter(include_in_schema=False)


@router.get("/open")
async def open_page(context: Context, request: Request, code: str, to: str = HOME_PAGE) -> RedirectResponse:
    """Change a one-time code for a session, and go to a page."""
    answer = RedirectResponse(_own_page(to), status_code=303)
    _set_session(answer, context.access.redeem(code), secure=request.url.scheme == "https")
    return answer


@router.get("/login")
async def begin(context: Context, request: Request, to: str = HOME_PAGE, here: int = 0) -> Response:
    """Send a browser to the provider. It comes back to the address that the provider knows, so it starts from there."""
    try:
        desk = desk_of(context)
    except AiryardError as error:
        return _refusal(error)
    base = context.url
    if not here and request.url.netloc != urlsplit(base).netloc:
        return RedirectResponse(f"{base}/login?here=1&to={quote(_own_page(to), safe='')}", status_code=303)
    try:
        redirect_uri = f"{base}/login/callback"
        handle, url = await apart(
            desk, lambda: desk.begin_browser(address_of(request), redirect_uri, _own_page(to))
        )
    except AiryardError as error:
        return _refusal(error)
    answer = RedirectResponse(url, status_code=303)
    # Lax: the provider's answer comes as a link from another site.
    answer.set_cookie(
        LOGIN_COOKIE,
        handle,
        httponly=True,
        samesite="lax",
        secure=base.startswith("https:"),
        path="/login",
        max_age=int(LIFE_S),
    )
    return _private(answer)


@router.get("/login/callback")
async def callback(
    context: Context, request: Request, code: str = "", state: str = "", error: str = ""
) -> Response:
    """Finish a login in the browser that began it, and go where it wanted to."""
    handle = request.cookies.get(LOGIN_COOKIE, "")
    try:
        desk = desk_of(context)

        def ask_provider() -> Welcome:
            return desk.finish_browser(handle, state=state[:4096], code=code[:4096], error=error[:4096])

        welcome = await noted_welcome(request, desk, ask_provider)
        token, _ = await give_token(context, request, welcome, name="browser")
    except AiryardError as refusal:
        return _refusal(refusal)
    # A page instead of a redirect: a strict cookie is not sent along a chain that began at another site.
    answer = _page(
        "Logged in", f"You are logged in as {token.user}.", link=_own_page(welcome.back_to), follow=True
    )
    # The scheme that people see: a proxy may have ended TLS before this server.
    secure = context.url.startswith("https:")
    _set_session(answer, context.access.session(token.token_id), secure=secure)
    answer.delete_cookie(LOGIN_COOKIE, path="/login")
    return answer


class ToLogin:
    """Sends a browser that opens a page below ``/mlflow`` without a session to the login; programs get their 401."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or self._context.access.logins is None or not _opens_a_page(scope):
            await self._app(scope, receive, send)
            return
        turned_away = False

        async def send_or_turn(message: Message) -> None:
            nonlocal turned_away
            if message["type"] == "http.response.start" and message["status"] == 401:
                turned_away = True
            if not turned_away:
                await send(message)

        await self._app(scope, receive, send_or_turn)
        if turned_away:
            query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
            to = quote(f"{scope['path']}{query}", safe="")
            await RedirectResponse(f"/login?to={to}", status_code=303)(scope, receive, send)


def _opens_a_page(scope: Scope) -> bool:
    headers = dict(scope["headers"])
    if b"authorization" in headers:
        return False  # a program, whose refusal is told and audited
    path = str(scope["path"])
    return (
        scope["method"] == "GET"
        and path.startswith("/mlflow")
        and b"text/html" in headers.get(b"accept", b"")
    )


def _own_page(to: str) -> str:
    """Return a page of this server, whatever was asked for."""
    plain = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if plain else HOME_PAGE


def _set_session(answer: Response, session: str, *, secure: bool) -> None:
    answer.set_cookie(
        SESSION_COOKIE,
        session,
        httponly=True,
        samesite="strict",
        secure=secure,
        max_age=int(SESSION_S),
    )


def _refusal(error: AiryardError) -> Response:
    fix = error.fix.text if error.fix is not None else ""
    answer = _page("Not logged in", f"{error.message}. {fix}", status=error.http_status)
    answer.delete_cookie(LOGIN_COOKIE, path="/login")
    return answer


def _page(title: str, text: str, *, status: int = 200, link: str = "", follow: bool = False) -> Response:
    refresh = f'<meta http-equiv="refresh" content="0;url={html.escape(link)}">' if follow else ""
    onward = f'<p><a href="{html.escape(link)}">Go on</a></p>' if link else ""
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}<title>Airyard: {html.escape(title)}</title>'
        f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{onward}</html>"
    )
    return _private(HTMLResponse(body, status_code=status))


def _private(answer: Response) -> Response:
    """Keep an answer out of caches, and its address, which may hold a code, out of others' logs."""
    answer.headers["cache-control"] = "no-store"
    answer.headers["referrer-policy"] = "no-referrer"
    answer.headers["content-security-policy"] = "default-src 'none'; frame-ancestors 'none'"
    return answer
