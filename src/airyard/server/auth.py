"""Who is calling: the owner by token or browser session, a runner or user code by attempt token.

Owns: making and checking tokens. Must not know: routes, or what a caller may do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time

from airyard.core.errors import Denied, Fix, UserError
from airyard.core.ids import MemberKey
from airyard.server.context import Principal

ATTEMPT_PREFIX = "aya_"
ONE_TIME_S = 120.0
SESSION_S = 12 * 3600.0


class Gatekeeper:
    """Checks every request's credentials. Any thread."""

    def __init__(self, *, owner: str, token: str, attempt_key: bytes) -> None:
        self._owner = owner
        self._token = token.encode()
        self._attempt_key = attempt_key
        self._lock = threading.Lock()
        self._links: dict[str, float] = {}
        self._sessions: dict[str, float] = {}

    def attempt_token(self, key: MemberKey) -> str:
        """Return the token by which one member's runner and user code speak to the server."""
        return f"{ATTEMPT_PREFIX}{key}.{self._mac(key)}"

    def _mac(self, key: MemberKey) -> str:
        return hmac.new(self._attempt_key, str(key).encode(), hashlib.sha256).hexdigest()

    def proof(self, nonce: str) -> str:
        """Return what only a holder of the owner's token can say to a nonce."""
        return hmac.new(self._token, nonce.encode(), hashlib.sha256).hexdigest()

    def authorise(self, authorization: str | None, session: str | None) -> Principal:
        """Return who calls. Raises: Denied (401) without saying which part was wrong."""
        if authorization is not None:
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() == "bearer":
                found = self._by_token(credential.strip())
                if found is not None:
                    return found
        elif session is not None and self._session_is_live(session):
            return Principal(name=self._owner)
        raise unauthenticated(given=authorization is not None or session is not None)

    def _by_token(self, credential: str) -> Principal | None:
        if hmac.compare_digest(credential.encode(), self._token):
            return Principal(name=self._owner)
        if not credential.startswith(ATTEMPT_PREFIX):
            return None
        text, _, mac = credential[len(ATTEMPT_PREFIX) :].rpartition(".")
        try:
            key = MemberKey.parse(text)
        except UserError:
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(key).encode()):
            return None
        return Principal(name=self._owner, member=key)

    def one_time_link(self) -> str:
        """Return a code that a browser may change for a session once, within two minutes."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            _drop_old(self._links)
            self._links[code] = time.monotonic() + ONE_TIME_S
        return code

    def session_for(self, code: str) -> str:
        """Change a one-time code for a session cookie. Raises: Denied when it is used up or too old."""
        with self._lock:
            _drop_old(self._links)
            _drop_old(self._sessions)
            if self._links.pop(code, None) is None:
                raise Denied(
                    "this link has been used or is older than two minutes",
                    code="LINK_EXPIRED",
                    fix=Fix(text="ask for a new one", command="airyard open ID"),
                )
            session = secrets.token_urlsafe(32)
            self._sessions[session] = time.monotonic() + SESSION_S
            return session

    def _session_is_live(self, session: str) -> bool:
        with self._lock:
            return self._sessions.get(session, 0.0) > time.monotonic()


def unauthenticated(*, given: bool) -> Denied:
    """Return the refusal of a request without good credentials."""
    error = Denied(
        "the token was not accepted" if given else "this request carries no token",
        code="UNAUTHENTICATED",
        fix=Fix(
            text="on the server's machine the token is in <home>/server/token; elsewhere set AIRYARD_TOKEN"
        ),
    )
    error.http_status = 401  # type: ignore[misc]  # 403 is for callers that are known
    return error


def _drop_old(table: dict[str, float]) -> None:
    now = time.monotonic()
    for key in [key for key, until in table.items() if until <= now]:
        del table[key]
