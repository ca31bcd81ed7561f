"""What a provider may publish: which keys count, how often it is asked, and answers that are not to be trusted."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from airyard.adapters.oidc_issuer import Issuer
from airyard.core.errors import Denied, Unavailable

P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)
STRONG = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Publisher:
    """Serves a discovery document and a key set, both as a test wants them, and counts."""

    def __init__(self) -> None:
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, body = outer.answers.get(self.path, (404, b""))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.discovery(issuer=self.url, jwks_uri=f"{self.url}/keys")

    def discovery(self, **fields: str) -> None:
        self.answers["/.well-known/openid-configuration"] = (200, json.dumps(fields).encode())

    def keys(self, *keys: dict[str, Any]) -> None:
        self.answers["/keys"] = (200, json.dumps({"keys": keys}).encode())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, key: Any, algorithm: str, kid: str | None) -> str:
        now_s = int(time.time())
        claims = {"iss": self.url, "aud": "yard", "sub": "bob", "iat": now_s, "exp": now_s + 60}
        headers = {"kid": kid} if kid is not None else {}
        return jwt.encode(claims, key, algorithm=algorithm, headers=headers)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    one = Publisher()
    yield one
    one.close()


def published(kid: str, key: Any, **more: str) -> dict[str, Any]:
    public = key.public_key()
    made = ECAlgorithm if isinstance(public, ec.EllipticCurvePublicKey) else RSAAlgorithm
    return {**made.to_jwk(public, as_dict=True), "kid": kid, **more}


def verify(issuer: Issuer, token: str) -> str:
    return str(issuer.verify(token, audience=["yard"])["sub"])


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_which_keys_count(publisher: Publisher) -> None:
    publisher.keys(
        published("ec", P256),
        published("ec-large", P384),
        published("weak", WEAK),
        published("strong", STRONG),
        published("for-secrets", STRONG, use="enc"),
        published("other-algorithm", STRONG, alg="RS512"),
        {"kty": "oct", "kid": "shared", "k": "c2hhcmVk", "alg": "HS256"},
        {"kty": "RSA", "kid": "half"},
    )
    issuer = Issuer(publisher.url)
    assert verify(issuer, publisher.token(P256, "ES256", "ec")) == "bob"
    assert verify(issuer, publisher.token(STRONG, "RS256", "strong")) == "bob"
    assert verify(issuer, publisher.token(P256, "ES256", None)) == "bob", "the only one of its kind"
    for key, algorithm, kid in (
        (P384, "ES384", "ec-large"),
        (WEAK, "RS256", "weak"),
        (STRONG, "RS256", "for-secrets"),
        (STRONG, "RS256", "other-algorithm"),
        (STRONG, "RS512", "strong"),
        (STRONG, "PS256", "strong"),
        (b"shared" * 8, "HS256", "shared"),
        (STRONG, "RS256", "half"),
        (P256, "ES256", "strong"),
        (STRONG, "RS256", "ec"),
    ):
        with pytest.raises(Denied) as caught:
            verify(issuer, publisher.token(key, algorithm, kid))
        assert (caught.value.code, caught.value.http_status) == ("LOGIN_FAILED", 401), kid
    issuer.close()


def test_strangers_cannot_have_the_provider_asked_again_and_again(publisher: Publisher) -> None:
    now = [1000.0]
    publisher.keys(published("ec", P256))
    issuer = Issuer(publisher.url, rest_s=10, clock=lambda: now[0])
    assert verify(issuer, publisher.token(P256, "ES256", "ec")) == "bob"
    for number in range(5):
        with pytest.raises(Denied, match="does not publish"):
            verify(issuer, publisher.token(P256, "ES256", f"made-up-{number}"))
    assert publisher.asked.count("/keys") == 1, "the keys were read a moment ago"
    publisher.keys(published("next", STRONG))
    now[0] += 10
    assert verify(issuer, publisher.token(STRONG, "RS256", "next")) == "bob"
    assert publisher.asked.count("/keys") == 2
    with pytest.raises(Denied):
        verify(issuer, publisher.token(P256, "ES256", "ec"))
    now[0] += 3600
    publisher.answers.clear()
    for _ in range(3):
        with pytest.raises(Unavailable):
            verify(issuer, publisher.token(STRONG, "RS256", "next"))
    assert publisher.asked.count("/.well-known/openid-configuration") == 2, (
        "what is away is not asked at once again"
    )
    issuer.close()


@pytest.mark.parametrize(
    ("discovery", "reason"),
    [
        ((200, b"<html>"), "Expecting value"),
        ((200, b"[]"), "no JSON object"),
        ((200, b"{" + b" " * (1 << 20) + b"}"), "over 1 MiB"),
        ((302, b""), "HTTP status 302"),
        ((500, b""), "HTTP status 500"),
        ((200, b'{"issuer": "http://127.0.0.1:1"}'), "it calls itself"),
    ],
)
def test_an_answer_that_is_none_says_why(
    publisher: Publisher, discovery: tuple[int, bytes], reason: str
) -> None:
    publisher.answers["/.well-known/openid-configuration"] = discovery
    issuer = Issuer(publisher.url)
    with pytest.raises(Unavailable, match=reason) as caught:
        issuer.metadata()
    assert caught.value.code == "PROVIDER_AWAY"
    assert "/elsewhere" not in publisher.asked
    issuer.close()


def test_no_address_in_the_open_is_followed(publisher: Publisher) -> None:
    publisher.discovery(
        issuer=publisher.url, jwks_uri="http://id.example.org/keys", token_endpoint="file:///x"
    )
    issuer = Issuer(publisher.url)
    with pytest.raises(Exception, match="no address of a login provider"):
        verify(issuer, publisher.token(P256, "ES256", "ec"))
    with pytest.raises(Exception, match="no address of a login provider"):
        issuer.endpoint("token_endpoint")
    with pytest.raises(Exception, match="has no device_authorization_endpoint"):
        issuer.endpoint("device_authorization_endpoint")
    issuer.close()
