"""This server as a client of an OpenID provider: the code flow with PKCE, and the device flow.

Owns: the four requests of these flows and the reading of their answers. Must not know: who waits for a login, users.
Calls block; any thread.

Source: OpenID Connect Core 1.0 section 3.1, RFC 7636 (PKCE), RFC 8628 (devices), RFC 6749 section 2.3.1.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from airyard.adapters.oidc_issuer import Issuer, away, body_of, check_address, refused
from airyard.core.errors import Denied

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEVICE_INTERVAL_S = 5.0
SLOWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """A device flow that has begun: what the person types where, and what the server asks with meanwhile."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    interval_s: float
    expires_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StillWaiting:
    """The person has not answered yet; ``slower``: the provider wants to be asked less often."""

    slower: bool


class OidcClient:
    """A client that is registered at one provider; ``secret`` None is a public one."""

    def __init__(self, issuer: Issuer, client_id: str, secret: str | None, scopes: Sequence[str]) -> None:
        self.issuer = issuer
        self.client_id = client_id
        self._secret = secret
        self._scope = " ".join(dict.fromkeys(("openid", *scopes)))

    def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return where a browser goes to log in. Raises: Unavailable."""
        endpoint = self.issuer.endpoint("authorization_endpoint")
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def exchange(self, *, code: str, redirect_uri: str, verifier: str) -> str:
        """Change the code that a browser came back with for an ID token. Raises: Denied, Unavailable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        status, answer = self._post(self.issuer.endpoint("token_endpoint"), form)
        return self._id_token(status, answer)

    def begin_device(self) -> DeviceCode:
        """Begin a device flow. Raises: Unavailable; UserError (``LOGIN_WAY_MISSING``) when the provider has none."""
        endpoint = self.issuer.endpoint("device_authorization_endpoint")
        status, answer = self._post(endpoint, {"scope": self._scope})
        try:
            if status >= 400:
                raise ValueError(f"it refuses a device login ({_told(answer)})")
            complete = answer.get("verification_uri_complete")
            code = DeviceCode(
                device_code=str(answer["device_code"]),
                user_code=str(answer["user_code"]),
                verification_uri=str(answer["verification_uri"]),
                verification_uri_complete=str(complete) if complete else None,
                interval_s=float(answer.get("interval") or DEVICE_INTERVAL_S),
                expires_s=float(answer["expires_in"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise away(self.issuer.url, f"a device login cannot begin: {error}") from error
        for address in (code.verification_uri, code.verification_uri_complete):
            if address is not None:
                check_address(address)
        return code

    def poll_device(self, device_code: str) -> str | StillWaiting:
        """Ask once whether the person has answered; return the ID token then. Raises: Denied, Unavailable."""
        form = {"grant_type": DEVICE_GRANT, "device_code": device_code}
        status, answer = self._post(self.issuer.endpoint("token_endpoint"), form)
        error = answer.get("error")
        if status >= 400 and error in ("authorization_pending", "slow_down"):
            return StillWaiting(slower=error == "slow_down")
        return self._id_token(status, answer)

    def _id_token(self, status: int, answer: Mapping[str, Any]) -> str:
        if status >= 400:
            raise _turned_down(answer)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise refused("the provider sent no ID token; is the scope openid allowed for this client?")
        return token

    def _post(self, address: str, form: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send a form as this client; return the status and the JSON of an answer that is not the provider's fault."""
        fields = {**form, "client_id": self.client_id}
        auth: tuple[str, str] | None = None
        if self._secret is not None:
            methods = self.issuer.metadata().get("token_endpoint_auth_methods_supported")
            if not isinstance(methods, list) or "client_secret_basic" in methods:
                auth = quote(self.client_id, safe=""), quote(self._secret, safe="")
            else:
                fields["client_secret"] = self._secret
        http = self.issuer.http
        try:
            headers = {"accept": "application/json"}
            with http.stream("POST", address, data=fields, headers=headers, auth=auth) as answer:
                if answer.status_code >= 500:
                    raise ValueError(f"it answers with HTTP status {answer.status_code}")
                return answer.status_code, body_of(answer)
        except (httpx.HTTPError, ValueError) as error:
            raise away(self.issuer.url, str(error) or type(error).__name__) from error


def _turned_down(answer: Mapping[str, Any]) -> Denied:
    match answer.get("error"):
        case "access_denied":
            return refused("the login was declined at the provider")
        case "expired_token":
            return refused("nobody entered the code in time")
        case "invalid_grant":
            return refused("its code was used already, is too old, or is another login's")
        case "invalid_client" | "unauthorized_client":
            return refused(
                "the provider does not know this server as a client; its admin looks at [people.oidc] client_id and "
                f"client_secret_file ({_told(answer)})"
            )
    return refused(f"the provider says {_told(answer)}")


def _told(answer: Mapping[str, Any]) -> str:
    """Return what the provider says about an error, as words that are safe to print."""
    words = f"{answer.get('error', 'nothing')}: {answer.get('error_description', '')}"
    return "".join(char for char in words if char.isprintable())[:300].rstrip(": ")
