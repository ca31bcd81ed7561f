"""Logins that are under way: begun here, answered at the provider, finished here once.

Owns: what has to be remembered between these steps, how many and how long; which jobs of other systems count as which
service. Must not know: routes, tokens of this yard. Calls that ask the provider block; any thread.
"""

from __future__ import annotations

import contextlib
import fnmatch
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jwt

from airyard.adapters.oidc_client import SLOWER_S, DeviceCode, OidcClient
from airyard.adapters.oidc_issuer import REST_S, Issuer, refused
from airyard.core.access.logins import Login, LoginRules, admitted
from airyard.core.errors import Denied, NotFound, Unavailable
from airyard.server.config_oidc import OidcSection, ServiceTrust, read_secret

LIFE_S = 600.0
MOST = 2000
MOST_OF_ADDRESS = 200
MOST_ASKING = 64
"""Requests that wait for a provider at a time: anybody may make them, and one that hangs holds each for seconds."""
MOST_TOKEN_CHARS = 64 * 1024
THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A login that has begun. ``state`` is what the provider must repeat, ``device`` is set in a device flow."""

    address: str
    until_s: float
    state: str = ""
    nonce: str = ""
    verifier: str = ""
    redirect_uri: str = ""
    back_to: str = ""
    device: DeviceCode | None = None
    next_poll_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Who has logged in. ``back_to``: where a browser wanted to go."""

    user: str
    login: Login
    back_to: str = ""


class LoginDesk:
    """The logins of one server. They are lost when another takes over: whoever logs in then begins again."""

    def __init__(
        self,
        section: OidcSection,
        *,
        clock: Callable[[], float] = time.monotonic,
        rest_s: float = REST_S,
    ) -> None:
        """Raises: UserError for an address or a secret's file that cannot be used; no provider is asked yet."""
        self.pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="login")
        """Where calls that ask a provider run: one that hangs keeps no other request waiting."""
        self._section = section
        self._clock = clock
        self._asking = 0
        self._lock = threading.Lock()
        self._pending: dict[str, Pending] = {}
        self._rules: LoginRules = section.rules()
        named = [section.issuer] if section.issuer is not None else []
        self._issuers: Mapping[str, Issuer] = {
            url: Issuer(url, ca_file=section.ca_file, rest_s=rest_s)
            for url in dict.fromkeys([*named, *(trust.issuer for trust in section.services)])
        }
        self._client: OidcClient | None = None
        if section.issuer is not None and section.client_id is not None:
            secret = read_secret(section.client_secret_file)
            issuer = self._issuers[section.issuer]
            self._client = OidcClient(issuer, section.client_id, secret, section.scopes)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Count one who asks the provider. Only on the event loop's thread. Raises: Unavailable over the limit."""
        if self._asking >= MOST_ASKING:
            raise Unavailable(
                f"{self._asking} logins are waiting for the provider (limit {MOST_ASKING})",
                code="TOO_MANY_LOGINS",
                retry_after_ms=10_000,
                fix="wait a moment; the provider may be slow to answer",
            )
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    @property
    def token_ms(self) -> int:
        """How long a token counts that a login gives out."""
        return int(self._section.token_hours * 3_600_000)

    def close(self) -> None:
        """Close the connections to providers."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for issuer in self._issuers.values():
            issuer.close()

    def ways(self) -> Mapping[str, object]:
        """Return how one logs in, as far as is known without asking anybody."""
        return {
            "issuer": self._section.issuer,
            "person": self._client is not None,
            "service": bool(self._section.services),
        }

    def begin_browser(self, address: str, redirect_uri: str, back_to: str = "") -> tuple[str, str]:
        """Begin a login; return its handle, for its beginner alone, and where the browser goes. Raises: Unavailable."""
        client = self._person_client()
        client.issuer.reach()  # or the person would learn from a browser's error page that the provider is away
        pending = Pending(
            address=address,
            until_s=self._clock() + LIFE_S,
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            back_to=back_to,
        )
        url = client.authorization_url(
            redirect_uri=redirect_uri, state=pending.state, nonce=pending.nonce, verifier=pending.verifier
        )
        return self._remember(pending), url

    def begin_device(self, address: str) -> tuple[str, DeviceCode]:
        """Begin a login on another device; return its handle and what to type where. Raises: Unavailable, UserError."""
        self._make_room(address)
        device = self._person_client().begin_device()
        now_s = self._clock()
        pending = Pending(
            address=address,
            until_s=now_s + min(device.expires_s, 3 * LIFE_S),
            device=device,
            next_poll_s=now_s + device.interval_s,
        )
        return self._remember(pending), device

    def finish_browser(self, handle: str, *, state: str, code: str, error: str = "") -> Welcome:
        """Finish a login with what the browser came back with; it can be done once. Raises: Denied, Unavailable."""
        with self._lock:
            pending = self._pending.pop(handle, None)
        if pending is None or pending.device is not None or pending.until_s <= self._clock():
            raise _unknown_login()
        if not secrets.compare_digest(pending.state.encode(), state.encode()):
            raise refused("the browser came back from another login (its state is another)")
        if error or not code:
            told = "".join(char for char in error if char.isprintable())[:100]
            raise refused(f"the provider says {told or 'nothing'}")
        client = self._person_client()
        token = client.exchange(code=code, redirect_uri=pending.redirect_uri, verifier=pending.verifier)
        return replace(self._welcome(token, pending.nonce), back_to=pending.back_to)

    def poll_device(self, handle: str) -> Welcome | float:
        """Ask whether a device login is answered; return who it is, or in how many seconds to ask again.

        Raises: Denied, Unavailable.
        """
        now_s = self._clock()
        with self._lock:
            pending = self._pending.get(handle)
            if pending is None or pending.device is None or pending.until_s <= now_s:
                raise _unknown_login()
            if now_s < pending.next_poll_s:
                return pending.next_poll_s - now_s
            device = pending.device
            self._pending[handle] = replace(pending, next_poll_s=now_s + device.interval_s)
        try:
            found = self._person_client().poll_device(device.device_code)
        except Denied:
            self._forget(handle)
            raise
        if isinstance(found, str):
            self._forget(handle)
            return self._welcome(found, None)
        interval_s = device.interval_s + (SLOWER_S if found.slower else 0)
        with self._lock:
            if handle in self._pending:
                slower = replace(device, interval_s=interval_s)
                self._pending[handle] = replace(pending, device=slower, next_poll_s=now_s + interval_s)
        return interval_s

    def service(self, token: str) -> Welcome:
        """Return which service a job is, by a token that its own system signed for it. Raises: Denied, Unavailable."""
        trusts = self._trusts(token)
        issuer = self._issuers[trusts[0].issuer]
        claims = issuer.verify(token, audience={trust.audience for trust in trusts})
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        for trust in trusts:
            if trust.audience in audiences and fnmatch.fnmatchcase(claims["sub"], _pattern(trust.subject)):
                login = Login(issuer=str(claims["iss"]), subject=claims["sub"][:500], role=None)
                return Welcome(user=trust.user, login=login)
        raise Denied(
            f"this yard trusts no job called {claims['sub'][:200]!r}",
            code="LOGIN_NOT_ALLOWED",
            details={"user": claims["sub"][:200]},
            fix="an admin of this yard lists the subjects that it trusts in [[people.oidc.services]]",
        )

    def _trusts(self, token: str) -> Sequence[ServiceTrust]:
        """Return the entries of the provider that a token says to be from; nothing of it is proved yet."""
        if len(token) > MOST_TOKEN_CHARS:
            raise refused("it is too long")
        try:
            claims = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError as error:
            raise refused("it is no signed token") from error
        found = [trust for trust in self._section.services if trust.issuer == claims.get("iss")]
        if not found:
            raise refused("this yard does not trust the provider that it names")
        return found

    def _welcome(self, token: str, nonce: str | None) -> Welcome:
        client = self._person_client()
        audience = self._section.audience or client.client_id
        claims = client.issuer.verify(token, audience=[audience], party=client.client_id, nonce=nonce)
        user, login = admitted(self._rules, claims)
        return Welcome(user=user, login=login)

    def _person_client(self) -> OidcClient:
        if self._client is None:
            raise no_login()
        return self._client

    def _remember(self, pending: Pending) -> str:
        self._make_room(pending.address)
        handle = secrets.token_urlsafe(32)
        with self._lock:
            self._pending[handle] = pending
        return handle

    def _make_room(self, address: str) -> None:
        """Drop old logins. Raises: Unavailable when there are too many all the same."""
        now_s = self._clock()
        with self._lock:
            for handle in [key for key, one in self._pending.items() if one.until_s <= now_s]:
                del self._pending[handle]
            same = sum(1 for one in self._pending.values() if one.address == address)
            if len(self._pending) < MOST and same < MOST_OF_ADDRESS:
                return
        raise Unavailable(
            f"{same} logins from {address} have begun and are not finished (limit {MOST_OF_ADDRESS}; in all {MOST})",
            code="TOO_MANY_LOGINS",
            retry_after_ms=60_000,
            fix=f"finish one, or wait: a login that has begun is forgotten after {LIFE_S / 60:g} minutes",
        )

    def _forget(self, handle: str) -> None:
        with self._lock:
            self._pending.pop(handle, None)


def no_login() -> NotFound:
    """Return the answer of a yard that has no login provider."""
    return NotFound(
        "this yard has no login provider",
        code="NO_LOGIN_PROVIDER",
        fix="ask an admin of it for a token, and set AIRYARD_TOKEN",
    )


def _pattern(subject: str) -> str:
    """Return a subject as a pattern in which ``[`` is no more than itself."""
    return subject.replace("[", "[[]")


def _unknown_login() -> Denied:
    return Denied(
        "this login is not known: it was finished already, or is too old",
        code="LOGIN_EXPIRED",
        fix="begin again",
    )
