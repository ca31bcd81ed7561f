"""Starts the login provider of the tests on loopback, and does in it what people do in a browser.

Owns: its process, its keys, forged tokens. Must not know: Airyard.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwcrypto.jwk import JWK

from oidc_site import SECRET

__all__ = ["SECRET", "Browser", "LoginProvider"]
START_S = 60.0


def new_key() -> str:
    """Return a fresh RSA key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


class LoginProvider:
    """One provider. ``start`` and ``stop`` may take turns; its address and people stay."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.pem = new_key()
        (folder / "key.pem").write_text(self.pem)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{self._port}"
        self.issuer = f"{self.root}/o"
        self._process: subprocess.Popen[str] | None = None
        self._claims: dict[str, Mapping[str, Any]] = {}

    def start(self) -> None:
        """Start it; returns when it answers."""
        program = Path(__file__).with_name("oidc_site.py")
        with (self._folder / "provider.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(self._folder), str(self._port)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", (self._folder / "provider.log").read_text()
        self.say(claims=self._claims)

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def say(self, **changes: Any) -> None:
        """Change a setting of the running provider."""
        httpx.post(f"{self.root}/test/control", json=changes, timeout=START_S).raise_for_status()

    def person(self, name: str, **claims: Any) -> None:
        """Say what is known of somebody."""
        self._claims[name] = {"preferred_username": name, **claims}
        self.say(claims=self._claims)

    def rotate(self) -> None:
        """Sign with a new key from now on; the old one is published no more."""
        self.pem = new_key()
        (self._folder / "key.pem").write_text(self.pem)
        self.say(pem=self.pem)

    @property
    def kid(self) -> str:
        """The id of the key that is signed with."""
        return str(JWK.from_pem(self.pem.encode()).thumbprint())

    def token(self, pem: str | None = None, **changes: Any) -> str:
        """Sign a token of a service with the provider's own key, or another; a claim of None is left out."""
        now_s = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": "yard-services",
            "sub": "repo:lab/train:ref:main",
            "iat": now_s,
            "exp": now_s + 300,
            **changes,
        }
        kept = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(kept, pem or self.pem, algorithm="RS256", headers={"kid": self.kid})


class Browser:
    """A browser in which somebody is signed in at the provider."""

    def __init__(self, provider: LoginProvider, name: str) -> None:
        self._root = provider.root
        self.http = httpx.Client(timeout=START_S)
        self.http.get(f"{self._root}/test/sign-in/{name}")

    def follow(self, url: str) -> str:
        """Visit an address of the provider; return where it sends the browser in the end, without going there."""
        for _ in range(5):
            answer = self.http.get(url)
            if answer.status_code not in (302, 303):
                raise AssertionError(f"{url}: {answer.status_code} {answer.text[:500]}")
            url = str(answer.url.join(answer.headers["location"]))
            if not url.startswith(self._root):
                return url
        raise AssertionError(url)

    def allow_device(self, verification: str, user_code: str, action: str = "accept") -> None:
        """Enter the code of a device, and say yes."""
        page = self.http.get(verification)
        answer = self._submit(page, {"user_code": user_code})
        page = self.http.get(answer)
        self._submit(page, {"action": action})

    def _submit(self, page: httpx.Response, fields: dict[str, str]) -> str:
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        assert found, page.text
        sent = self.http.post(page.url, data={**fields, "csrfmiddlewaretoken": found[1]})
        assert sent.status_code == 302, sent.text
        return str(page.url.join(sent.headers["location"]))

    def close(self) -> None:
        """Forget everything."""
        self.http.close()
