"""The bodies of requests about tokens, and their answers.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, who may have which token.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airyard.wire.answer import Answer
from airyard.wire.native import Name, Part


class TokenRequest(Part):
    """``POST /tokens``: without ``user`` for oneself; no wider than the token that asks."""

    user: Name | None = None
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    scope: Literal["read", "write", "admin"] = "write"
    kind: Literal["person", "agent", "service"] | None = None
    project: Name | None = None
    expires_s: Annotated[int, Field(ge=1, le=10 * 366 * 86_400)] | None = None
    gpu_hours_limit: Annotated[float, Field(ge=0, le=1e9)] | None = None


class TokenDoc(Answer):
    """One token, without its secret. ``valid``: neither revoked nor expired, and its user is known."""

    token_id: str
    user: str
    name: str
    scope: str
    kind: str
    project: str | None
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    revoked_by: str | None
    last_used_at: str | None
    valid: bool
    gpu_hours_limit: float | None
    gpu_hours_used: float


class TokenAnswer(Answer):
    """A new token: ``secret`` is the text to send, and is shown this once."""

    token: TokenDoc
    secret: str


class TokensAnswer(Answer):
    """The caller's tokens; an admin's answer holds everybody's."""

    tokens: list[TokenDoc]
