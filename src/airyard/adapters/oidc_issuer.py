"""What an OpenID provider publishes, and the check of what it signed.

Owns: discovery, the key set and its renewal, signature and claims of tokens. Must not know: logins, users, what a
claim means here. Calls block; any thread.

Source: OpenID Connect Discovery 1.0, Core 1.0 section 3.1.3.7, RFC 7515, RFC 8725.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
import structlog

from airyard.core.errors import Denied, Unavailable, UserError

ALGORITHMS = {"RS256": "RSA", "ES256": "EC"}
"""Signature → kind of key. Nothing else counts: ``none`` is no signature, HS256 takes a public key for a secret."""
LEEWAY_S = 30.0
"""By so much the provider's clock may differ from this one."""
KEPT_S = 3600.0
"""So long what was published counts without being asked for again."""
REST_S = 10.0
"""At most so often it is asked for again because of an unknown key or after a failure."""
TIMEOUT_S = 10.0
MOST_BYTES = 1 << 20
LEAST_RSA_BITS = 2048
_log = structlog.get_logger("airyard.oidc")


class Issuer:
    """One provider. Nothing is asked before the first use: a provider that is away stops no server."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: str | None = None,
        rest_s: float = REST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises: UserError (``BAD_ISSUER``) for an address that is neither HTTPS nor this machine's."""
        check_address(url)
        self.url = url
        self._rest_s, self._clock = rest_s, clock
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca_file) if ca_file else True
        self.http = httpx.Client(timeout=TIMEOUT_S, verify=verify, follow_redirects=False)
        self._lock = threading.Lock()
        self._metadata: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, Mapping[str, jwt.PyJWK]] | None = None
        self._failed: tuple[float, str] | None = None

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def endpoint(self, name: str) -> str:
        """Return one of the provider's addresses. Raises: Unavailable; UserError when there is none."""
        with self._lock:
            found = self._discovered().get(name)
        if not isinstance(found, str):
            raise UserError(f"the provider {self.url} has no {name}", code="LOGIN_WAY_MISSING")
        check_address(found)
        return found

    def reach(self) -> None:
        """Ask the provider something, unless it has answered just now. Raises: Unavailable (``PROVIDER_AWAY``)."""
        with self._lock:
            self._discovered(kept_s=self._rest_s)

    def metadata(self) -> Mapping[str, Any]:
        """Return the discovery document. Raises: Unavailable (``PROVIDER_AWAY``)."""
        with self._lock:
            return self._discovered()

    def verify(
        self,
        token: str,
        *,
        audience: Collection[str],
        party: str | None = None,
        nonce: str | None = None,
    ) -> Mapping[str, Any]:
        """Return the claims of a token that this provider signed for one of ``audience``, and that counts now.

        ``party``: whom it must have been issued to where it says so. ``nonce``: the one that it must repeat.
        Raises: Denied (``LOGIN_FAILED``, 401), Unavailable.
        """
        key, algorithm = self._key_of(token)
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=list(audience),
                issuer=self.url,
                leeway=LEEWAY_S,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except jwt.PyJWTError as error:
            raise refused(_reason(error)) from error
        _check_party(claims, party)
        if nonce is not None and claims.get("nonce") != nonce:
            raise refused("it does not belong to this login (its nonce is another)")
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise refused("it names no subject")
        return claims

    def _key_of(self, token: str) -> tuple[jwt.PyJWK, str]:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise refused("it is no signed token") from error
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise refused(f"it is signed with {algorithm!s:.20}; only {' and '.join(ALGORITHMS)} count")
        if "crit" in header:
            raise refused("it asks for extensions that are not known here")
        kid = header.get("kid")
        with self._lock:
            key = self._key(kid, algorithm, self._published())
            if key is None and self._may_ask_again():
                key = self._key(kid, algorithm, self._published(again=True))
        if key is None:
            raise refused("it is signed with a key that the provider does not publish")
        return key, algorithm

    def _key(self, kid: object, algorithm: str, keys: Mapping[str, jwt.PyJWK]) -> jwt.PyJWK | None:
        fitting = {name: key for name, key in keys.items() if key.key_type == ALGORITHMS[algorithm]}
        if kid is None:
            return next(iter(fitting.values())) if len(fitting) == 1 else None
        return fitting.get(str(kid))

    def _may_ask_again(self) -> bool:
        return self._keys is not None and self._clock() >= self._keys[0] + self._rest_s

    def _published(self, *, again: bool = False) -> Mapping[str, jwt.PyJWK]:
        """Return the keys, asked for (``again``) when they are old. Call with the lock held."""
        if again or self._keys is None or self._clock() >= self._keys[0] + KEPT_S:
            address = self._discovered().get("jwks_uri")
            if not isinstance(address, str):
                raise self._away("its discovery document names no jwks_uri")
            check_address(address)
            found = _usable(self._get(address).get("keys"))
            self._keys = self._clock(), found
            _log.info("provider_keys", issuer=self.url, keys=len(found))
        return self._keys[1]

    def _discovered(self, kept_s: float = KEPT_S) -> Mapping[str, Any]:
        """Return the discovery document, asked for again when it is old. Call with the lock held."""
        if self._metadata is None or self._clock() >= self._metadata[0] + kept_s:
            found = self._get(f"{self.url.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self.url:
                raise self._away(f"it calls itself {found.get('issuer')!s:.200}")
            self._metadata = self._clock(), found
        return self._metadata[1]

    def _get(self, address: str) -> Mapping[str, Any]:
        if self._failed is not None and self._clock() < self._failed[0] + self._rest_s:
            raise away(self.url, self._failed[1])
        try:
            with self.http.stream("GET", address) as answer:
                answer.raise_for_status()
                return body_of(answer)
        except (httpx.HTTPError, ValueError) as error:
            raise self._away(_trouble(error)) from error

    def _away(self, why: str) -> Unavailable:
        self._failed = self._clock(), why
        _log.warning("provider_away", issuer=self.url, reason=why)
        return away(self.url, why)


def body_of(answer: httpx.Response) -> dict[str, Any]:
    """Read an answer that is a JSON object, of a bounded size. Raises: httpx.HTTPError, ValueError."""
    parts: list[bytes] = []
    size = 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError(f"its answer is over {MOST_BYTES >> 20} MiB")
        parts.append(part)
    found = json.loads(b"".join(parts))
    if not isinstance(found, dict):
        raise ValueError("its answer is no JSON object")
    return found


def check_address(url: str) -> None:
    """Refuse what others could listen to. Raises: UserError (``BAD_ISSUER``)."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return
    if parts.scheme == "http" and (host == "localhost" or _is_loopback(host)):
        return
    raise UserError(
        f"{url!r:.300} is no address of a login provider: it takes https://, or http:// on this machine",
        code="BAD_ISSUER",
    )


def refused(reason: str) -> Denied:
    """Return the refusal of a token that does not prove who somebody is."""
    error = Denied(f"the provider's token is not accepted: {reason}", code="LOGIN_FAILED", fix="log in again")
    error.http_status = 401  # type: ignore[misc]  # 403 is for callers that are known
    return error


def away(url: str, why: str) -> Unavailable:
    """Return the answer while a provider cannot be asked."""
    return Unavailable(
        f"the login provider {url} cannot be asked: {why}",
        code="PROVIDER_AWAY",
        retry_after_ms=int(REST_S * 1000),
        fix="try again later; tokens that were given out go on counting meanwhile",
    )


def _usable(listed: Any) -> dict[str, jwt.PyJWK]:
    """Return the signature keys of a set by their ids; what is for something else, or weak, is left out."""
    found: dict[str, jwt.PyJWK] = {}
    for number, item in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(item, dict) or item.get("use") not in (None, "sig"):
            continue
        algorithm = item.get("alg") or {"RSA": "RS256", "EC": "ES256"}.get(str(item.get("kty")))
        if algorithm not in ALGORITHMS or (algorithm == "ES256" and item.get("crv") != "P-256"):
            continue
        try:
            key = jwt.PyJWK.from_dict(item, algorithm)
        except jwt.PyJWTError:
            continue
        if key.key_type == "RSA" and key.key.key_size < LEAST_RSA_BITS:
            continue
        found[str(item.get("kid", f"#{number}"))] = key
    return found


def _check_party(claims: Mapping[str, Any], party: str | None) -> None:
    if party is None:
        return
    issued_to = claims.get("azp")
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if (issued_to is None and several) or (issued_to is not None and issued_to != party):
        raise refused("it was issued to another client (azp)")


def _reason(error: jwt.PyJWTError) -> str:
    clock = "; if it is fresh, the clocks of the provider and of this server differ"
    match error:
        case jwt.ExpiredSignatureError():
            return f"it has expired{clock}"
        case jwt.ImmatureSignatureError():
            return f"it is not valid yet{clock}"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.InvalidIssuerError():
            return "another provider issued it"
        case jwt.InvalidSignatureError():
            return "its signature is wrong"
        case jwt.MissingRequiredClaimError():
            return f"it lacks the claim {error.claim}"
    return "it cannot be read"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _trouble(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"it answers with HTTP status {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {TIMEOUT_S:g} s"
    return str(error) or type(error).__name__
