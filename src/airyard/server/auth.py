"""Who is calling: by the owner's token, a given one, a browser session, or as a member's runner or its command.

Owns: making and checking tokens and sessions. Must not know: routes, or what a caller may do.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable

from airyard.core.access.people import People
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Role
from airyard.core.access.tokens import Token
from airyard.core.errors import Denied, Fix, UserError
from airyard.core.ids import MemberKey

ATTEMPT_PREFIX = "aya_"
COMMAND_PREFIX = "ayc_"
TOKEN_PREFIX = "ayu_"
ONE_TIME_S = 120.0
SESSION_S = 12 * 3600.0
SESSION_COOKIE = "airyard_session"
NO_DIGEST = "0" * 64
"""Compared with where no token is known, so that an unknown one takes as long as a wrong one."""


class Gatekeeper:
    """Checks every request's credentials. Any thread.

    ``find_token`` looks into the newest committed state; until ``connect`` no token but the owner's counts.
    """

    def __init__(
        self, *, owner: str, token: str, attempt_key: bytes, people: Callable[[], People] | None = None
    ) -> None:
        self._owner = owner
        self._token = token.encode()
        self._attempt_key = attempt_key
        self._people = people or (lambda: People(owner=owner))
        self._find_token: Callable[[str], Token | None] = lambda token_id: None
        self._now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
        self._lock = threading.Lock()
        self._links: dict[str, tuple[float, str]] = {}
        self._sessions: dict[str, tuple[float, str]] = {}
        self.used_ms: dict[str, int] = {}
        """Token id → when it was used last."""

    def connect(self, find_token: Callable[[str], Token | None], now_ms: Callable[[], int]) -> None:
        """Begin to accept tokens that were given out."""
        self._find_token, self._now_ms = find_token, now_ms

    def attempt_token(self, key: MemberKey) -> str:
        """Return the token by which one member's runner speaks to the server."""
        return f"{ATTEMPT_PREFIX}{key}.{self._mac(ATTEMPT_PREFIX, key)}"

    def command_token(self, key: MemberKey) -> str:
        """Return the token by which one member's user code writes to its tracked runs, and may do nothing else.

        Who has it can report nothing in the runner's name; neither token can be made from the other.
        """
        return f"{COMMAND_PREFIX}{key}.{self._mac(COMMAND_PREFIX, key)}"

    def _mac(self, prefix: str, key: MemberKey) -> str:
        text = str(key) if prefix == ATTEMPT_PREFIX else f"{prefix}{key}"
        return hmac.new(self._attempt_key, text.encode(), hashlib.sha256).hexdigest()

    def proof(self, nonce: str, token_id: str | None = None) -> str:
        """Return what only a holder of the owner's token, or of a token's digest, can say to a nonce.

        Of a token that is not known it is chance: whether it exists is not said.
        """
        key = self._token
        if token_id is not None:
            token = self._find_token(token_id)
            key = token.digest.encode() if token is not None else secrets.token_bytes(32)
        return hmac.new(key, nonce.encode(), hashlib.sha256).hexdigest()

    def authorise(self, authorization: str | None, session: str | None) -> Principal:
        """Return who calls. Raises: Denied (401) without saying which part was wrong."""
        found: Principal | None = None
        if authorization is not None:
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() == "bearer":
                found = self._by_credential(credential.strip())
        elif session is not None:
            found = self._by_session(session)
        if found is None:
            raise unauthenticated(given=authorization is not None or session is not None)
        return found

    def still(self, principal: Principal) -> bool:
        """True while the caller's token counts; asked again and again of a stream that is long."""
        if not principal.token_id:
            return True
        token = self._find_token(principal.token_id)
        return token is not None and self._of_token(token) is not None

    def _by_credential(self, credential: str) -> Principal | None:
        if hmac.compare_digest(credential.encode(), self._token):
            return self._owner_principal()
        if credential.startswith(TOKEN_PREFIX):
            return self._by_token(credential)
        for prefix in (ATTEMPT_PREFIX, COMMAND_PREFIX):
            if credential.startswith(prefix):
                return self._by_member(prefix, credential.removeprefix(prefix))
        return None

    def _by_member(self, prefix: str, credential: str) -> Principal | None:
        text, _, mac = credential.rpartition(".")
        try:
            key = MemberKey.parse(text)
        except UserError:
            return None
        if not hmac.compare_digest(mac.encode(), self._mac(prefix, key).encode()):
            return None
        return Principal(name=self._owner, role=Role.VIEWER, member=key, is_command=prefix == COMMAND_PREFIX)

    def _by_token(self, credential: str) -> Principal | None:
        token_id = credential[len(TOKEN_PREFIX) :].partition("_")[0]
        token = self._find_token(token_id)
        given = digest_of(credential)
        same = hmac.compare_digest(given, token.digest if token is not None else NO_DIGEST)
        if token is None or not same:
            return None
        if not token.counts(self._now_ms()):
            raise _over(token)
        found = self._of_token(token)
        if found is not None:
            self.used_ms[token.token_id] = self._now_ms()
        return found

    def _of_token(self, token: Token) -> Principal | None:
        """Return who holds a token; nobody when it counts no more, or its user is not known any more."""
        person = self._people().holder(token) if token.counts(self._now_ms()) else None
        if person is None:
            return None
        return Principal(
            name=person.name,
            role=person.role,
            kind=token.kind,
            groups=person.groups,
            scope=token.scope,
            project=token.project,
            token_id=token.token_id,
        )

    def _owner_principal(self) -> Principal | None:
        person = self._people().find(self._owner)
        return Principal(name=person.name, role=person.role, groups=person.groups) if person else None

    def one_time_link(self, principal: Principal) -> str:
        """Return a code that a browser may change for the caller's session once, within two minutes."""
        code = secrets.token_urlsafe(24)
        with self._lock:
            _drop_old(self._links)
            self._links[code] = time.monotonic() + ONE_TIME_S, principal.token_id
        return code

    def session_for(self, code: str) -> str:
        """Change a one-time code for a session cookie. Raises: Denied when it is used up or too old."""
        with self._lock:
            _drop_old(self._links)
            _drop_old(self._sessions)
            link = self._links.pop(code, None)
            if link is None:
                raise Denied(
                    "this link has been used or is older than two minutes",
                    code="LINK_EXPIRED",
                    fix=Fix(text="ask for a new one", command="airyard open ID"),
                )
            return self._new_session(link[1])

    def session_of(self, token_id: str) -> str:
        """Return a session cookie for the holder of a token; it ends with the token."""
        with self._lock:
            _drop_old(self._sessions)
            return self._new_session(token_id)

    def _new_session(self, token_id: str) -> str:
        session = secrets.token_urlsafe(32)
        self._sessions[session] = time.monotonic() + SESSION_S, token_id
        return session

    def _by_session(self, session: str) -> Principal | None:
        """Return whose session it is; that of a token ends with the token."""
        with self._lock:
            until, token_id = self._sessions.get(session, (0.0, ""))
        if until <= time.monotonic():
            return None
        if not token_id:
            return self._owner_principal()
        token = self._find_token(token_id)
        found = self._of_token(token) if token is not None else None
        if found is not None:
            self.used_ms[token_id] = self._now_ms()
        return found


def digest_of(credential: str) -> str:
    """Return what is kept of a token: SHA-256 in hex. Its secret is 32 random bytes, so no slower hash is needed."""
    return hashlib.sha256(credential.encode()).hexdigest()


def fresh_token() -> tuple[str, str]:
    """Make a token; return its id and its text, which is shown once."""
    token_id = secrets.token_hex(6)
    return token_id, f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"


def unauthenticated(*, given: bool) -> Denied:
    """Return the refusal of a request without good credentials."""
    return _as_401(
        Denied(
            "the token was not accepted" if given else "this request carries no token",
            code="UNAUTHENTICATED",
            fix=Fix(
                text="on the server's machine the token is in <home>/server/token; elsewhere `airyard login`, or "
                "set AIRYARD_TOKEN"
            ),
        )
    )


def _over(token: Token) -> Denied:
    """Return the refusal of a token that counted once; only its holder gets to see it."""
    what = "was revoked" if token.revoked_ms is not None else "has expired"
    return _as_401(
        Denied(
            f"token {token.token_id} ({token.name}) of {token.user} {what}",
            code="TOKEN_NOT_VALID",
            fix=Fix(text="log in again", command="airyard login")
            if token.login is not None
            else Fix(text="ask for a new one", command="airyard token create"),
        )
    )


def _as_401(error: Denied) -> Denied:
    error.http_status = 401  # type: ignore[misc]  # 403 is for callers that are known
    return error


def _drop_old(table: dict[str, tuple[float, str]]) -> None:
    now = time.monotonic()
    for key in [key for key, (until, _) in table.items() if until <= now]:
        del table[key]
