"""The bodies of requests about logins, and their answers.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, providers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airyard.wire.access import TokenDoc
from airyard.wire.answer import Answer
from airyard.wire.native import Part

Text = Annotated[str, Field(max_length=4096)]
Handle = Annotated[str, Field(min_length=1, max_length=200)]


class LoginWays(Answer):
    """How one logs in to this yard: people at ``issuer``, jobs of other systems with tokens of these."""

    issuer: str | None
    person: bool
    service: bool


class BrowserLoginRequest(Part):
    """``POST /login/browser``: the browser comes back to ``http://127.0.0.1:PORT/callback``."""

    port: Annotated[int, Field(ge=1, le=65535)]


class BrowserLogin(Answer):
    """A login that has begun. ``handle`` finishes it and is for its beginner alone; ``url`` is for the browser."""

    handle: str
    url: str
    expires_s: float


class DeviceLogin(Answer):
    """A login that somebody finishes on another device."""

    handle: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    interval_s: float
    expires_s: float


class FinishRequest(Part):
    """``POST /login/finish``: what the browser came back with."""

    handle: Handle
    state: Text = ""
    code: Text = ""
    error: Text = ""


class PollRequest(Part):
    """``POST /login/poll``."""

    handle: Handle


class ServiceLoginRequest(Part):
    """``POST /login/service``: a token that the job's own system signed for it."""

    token: Annotated[str, Field(min_length=1, max_length=65_536)]


class LoginAnswer(Answer):
    """The token that a login gives out; while it is not finished, in how many seconds to ask again."""

    wait_s: float | None = None
    token: TokenDoc | None = None
    secret: str | None = None


class WhoAmI(Answer):
    """Who the caller is here, and how that is known.

    ``how``: the owner's token, a token that was given out, a login at ``issuer``, or a job's token of ``issuer``.
    """

    name: str
    role: str
    kind: str
    groups: list[str]
    scope: str
    project: str | None
    how: Literal["owner", "token", "login", "job"]
    issuer: str | None
    subject: str | None
    token_id: str | None
    token_name: str | None
    expires_at: str | None
