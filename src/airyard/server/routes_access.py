"""Tokens, and the audit: what an admin gives out, takes back and reads.

Owns: the wire side, and that no token is wider than the one it was made with. Must not know: how secrets are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from airyard.app.views import Document, rfc3339
from airyard.core.access.people import Person
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Scope, Thing, Verb
from airyard.core.access.table import Facts, allowed
from airyard.core.access.tokens import Spent, Token
from airyard.core.commands import CreateToken, RevokeToken
from airyard.core.errors import Denied, NotFound, UserError
from airyard.server.access import require
from airyard.server.auth import digest_of, fresh_token
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.wire import access as wire

router = APIRouter(prefix=PREFIX, tags=["access"])
TokenId = Annotated[str, Path(min_length=1, max_length=64, description="The id of a token; not the token.")]
_SCOPES = list(Scope)


@router.post("/tokens", responses={200: {"model": wire.TokenAnswer}})
async def create_token(context: Context, caller: Caller, body: wire.TokenRequest) -> dict[str, Any]:
    """Give out a token. Its text is in this answer and nowhere else: only a hash of it is kept."""
    principal = caller.principal
    user = body.user or principal.name
    require(principal, Verb.CREATE, Thing.TOKEN, Facts(owner=user))
    parent = await _token(context, principal.token_id)
    own = parent if user == principal.name else None
    people = context.access.people()
    person = people.holder(own) if own is not None else people.find(user)
    if person is None:
        raise UserError(
            f"there is no user {user!r} in this yard",
            code="UNKNOWN_USER",
            fix="an admin adds people to the users file ([people] file of the configuration)",
        )
    now_ms = context.clock.now_ms()
    expires_ms = now_ms + body.expires_s * 1000 if body.expires_s is not None else None
    _check_width(principal, parent, body, expires_ms)
    token_id, text = fresh_token()
    token = Token(
        token_id=token_id,
        digest=digest_of(text),
        user=user,
        name=body.name,
        scope=Scope(body.scope),
        kind=_kind(person, body.kind),
        by=principal.name,
        created_ms=now_ms,
        project=body.project,
        expires_ms=expires_ms,
        gpu_hours=body.gpu_hours_limit,
        login=own.login if own is not None else None,
    )
    await ask(context, CreateToken(token=token))
    return {"token": token_document(context, token, Spent(at_ms=now_ms)), "secret": text}


@router.get("/tokens", responses={200: {"model": wire.TokensAnswer}})
async def list_tokens(context: Context, caller: Caller) -> dict[str, Any]:
    """Return tokens without their secrets, newest first: one's own, for an admin everybody's."""
    found = await query(context, lambda control: (dict(control.state.tokens), dict(control.state.spent)))
    tokens, spent = found
    shown = [
        token
        for token in tokens.values()
        if allowed(caller.principal, Verb.VIEW, Thing.TOKEN, Facts(owner=token.user)).allowed
    ]
    shown.sort(key=lambda token: (-token.created_ms, token.token_id))
    nothing = Spent(at_ms=context.clock.now_ms())
    return {
        "tokens": [token_document(context, token, spent.get(token.token_id, nothing)) for token in shown],
    }


@router.delete("/tokens/{token_id}", responses={200: {"model": wire.TokensAnswer}})
async def revoke_token(context: Context, caller: Caller, token_id: TokenId) -> dict[str, Any]:
    """Take a token back: from now on it is refused, and answers to it that are under way are cut."""
    token = await _token(context, token_id)
    if token is None:
        raise _no_token(token_id)
    facts = Facts(owner=token.user)
    require(caller.principal, Verb.DELETE, Thing.TOKEN, facts, missing=lambda: _no_token(token_id))
    await ask(context, RevokeToken(token_id=token_id, by=caller.name))
    revoked = await _token(context, token_id) or token
    return {"tokens": [token_document(context, revoked, Spent(at_ms=context.clock.now_ms()))]}


@router.get("/admin/audit", response_class=StreamingResponse)
async def audit(
    context: Context, caller: Caller, since_ms: Annotated[int, Query(ge=0, lt=1 << 53)] = 0
) -> StreamingResponse:
    """Return the audit as JSON lines, oldest first, from ``since_ms`` on."""

    def lines() -> Iterator[bytes]:
        part: list[bytes] = []
        for line in context.access.audit.read(since_ms):
            part.append(line)
            if len(part) >= 500:
                yield b"".join(part)
                part.clear()
        yield b"".join(part)

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def _token(context: ServerContext, token_id: str) -> Token | None:
    return await query(context, lambda control: control.state.tokens.get(token_id))


def _check_width(
    principal: Principal, parent: Token | None, body: wire.TokenRequest, expires_ms: int | None
) -> None:
    """Refuse a token that may more, longer or elsewhere than the one that asks for it. Raises: Denied."""
    wider: list[str] = []
    if _SCOPES.index(Scope(body.scope)) > _SCOPES.index(principal.scope):
        wider.append(f"scope {body.scope} (yours: {principal.scope.value})")
    last_ms = parent.expires_ms if parent is not None else None
    if last_ms is not None and (expires_ms is None or expires_ms > last_ms):
        wider.append("it would outlive yours")
    if parent is not None and parent.gpu_hours is not None:
        wider.append("yours has a limit of GPU-hours, and gives out no others")
    if wider:
        raise Denied(
            f"a token may not do more than the one it is made with: {'; '.join(wider)}",
            code="TOKEN_TOO_WIDE",
            fix="ask for less, or have an admin of this yard make it",
        )


def _kind(person: Person, wanted: str | None) -> Kind:
    kind = Kind(wanted) if wanted is not None else person.kind
    if person.kind is Kind.SERVICE and kind is Kind.PERSON:
        raise UserError(
            f"{person.name} is a service; it has no tokens of kind person", code="WRONG_TOKEN_KIND"
        )
    return kind


def _no_token(token_id: str) -> NotFound:
    return NotFound(
        f"there is no token {token_id}", code="TOKEN_NOT_FOUND", fix="`airyard token list` shows yours"
    )


def token_document(context: ServerContext, token: Token, spent: Spent) -> Document:
    """Return the TokenDoc of a token."""
    now_ms = context.clock.now_ms()
    return {
        "token_id": token.token_id,
        "user": token.user,
        "name": token.name,
        "scope": token.scope.value,
        "kind": token.kind.value,
        "project": token.project,
        "created_at": rfc3339(token.created_ms),
        "created_by": token.by,
        "expires_at": rfc3339(token.expires_ms),
        "revoked_at": rfc3339(token.revoked_ms),
        "revoked_by": token.revoked_by or None,
        "last_used_at": rfc3339(context.access.used_ms.get(token.token_id)),
        "valid": token.counts(now_ms) and context.access.people().holder(token) is not None,
        "gpu_hours_limit": token.gpu_hours,
        "gpu_hours_used": round(spent.hours(now_ms), 3),
    }
