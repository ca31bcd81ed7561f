"""Decides what is asked about tokens: giving out, taking back, and whether one still pays for a run.

Owns: these refusals. Must not know: secrets, who may ask (``core.access``).
"""

from __future__ import annotations

from airyard.core.access.tokens import Spent, Token
from airyard.core.commands import CreateToken, RevokeToken
from airyard.core.decide.decision import Decision
from airyard.core.errors import Conflict, Denied, NotFound, Unavailable
from airyard.core.events import TokenCreated, TokenRevoked
from airyard.core.state import ClusterState

MOST_TOKENS = 10_000


def create(state: ClusterState, command: CreateToken, now_ms: int) -> Decision:
    """Note a new token.

    Raises: Conflict when its user has a living one of that name; Unavailable over the limit; Denied
    (``ANOTHER_PERSON``) when its user's name was another's at the provider.
    """
    token = command.token
    same = (each for each in state.tokens.values() if (each.user, each.name) == (token.user, token.name))
    if any(each.counts(now_ms) for each in same):
        raise Conflict(
            f"{token.user} has a token named {token.name!r} already",
            code="TOKEN_EXISTS",
            fix="choose another name, or revoke that one first",
        )
    _check_same_person(state, token)
    # Those that may be forgotten are, once this one is there.
    kept = sum(not each.forgettable(now_ms) for each in state.tokens.values())
    if kept >= MOST_TOKENS:
        raise Unavailable(
            f"this yard has {kept} tokens (limit {MOST_TOKENS})",
            code="TOO_MANY_TOKENS",
            fix="revoke those that nobody uses; they are forgotten 30 days later, those of logins after 3",
        )
    return Decision(events=(TokenCreated(token=token),))


def _check_same_person(state: ClusterState, token: Token) -> None:
    """Refuse a name that somebody else logged in with: at a provider names change hands, subjects do not.

    Tokens that somebody other than their user revoked bind the name no more: an admin has looked at it.
    """
    if token.login is None or token.login.role is None:
        return
    for other in state.tokens.values():
        if other.user != token.user or other.login is None or other.login.role is None:
            continue
        if other.revoked_ms is not None and other.revoked_by != other.user:
            continue
        if (other.login.issuer, other.login.subject) != (token.login.issuer, token.login.subject):
            raise Denied(
                f"{token.user} is a name that another account of the provider has logged in with (token "
                f"{other.token_id})",
                code="ANOTHER_PERSON",
                fix=f"an admin who knows that it is the same person revokes the older tokens of {token.user}",
            )


def revoke(state: ClusterState, command: RevokeToken, now_ms: int) -> Decision:
    """Take a token back; one that counts no more is left as it is. Raises: NotFound."""
    token = state.tokens.get(command.token_id)
    if token is None:
        raise NotFound(f"there is no token {command.token_id}", code="TOKEN_NOT_FOUND")
    if token.revoked_ms is not None:
        return Decision()
    return Decision(events=(TokenRevoked(token_id=token.token_id, by=command.by),))


def check_pays(state: ClusterState, token_id: str, *, gpus: bool, now_ms: int) -> None:
    """Refuse a run of a token that counts no more, or (of GPUs) has used all that it may.

    Raises: Denied (``TOKEN_NOT_VALID``, ``TOKEN_SPENT``).
    """
    if not token_id:
        return
    token = state.tokens.get(token_id)
    if token is None or not token.counts(now_ms):
        raise Denied(f"token {token_id} was revoked or has expired", code="TOKEN_NOT_VALID")
    used = state.spent.get(token_id, Spent(at_ms=now_ms)).hours(now_ms)
    if not gpus or token.gpu_hours is None or used < token.gpu_hours:
        return
    raise Denied(
        f"token {token_id} ({token.name}) has used {used:.2f} of its {token.gpu_hours:g} GPU-hours",
        code="TOKEN_SPENT",
        details={"token_id": token_id, "used_gpu_hours": round(used, 3), "limit_gpu_hours": token.gpu_hours},
        fix="submit with another token; whoever gave this one out can make one with a higher --gpu-hours-limit",
    )
