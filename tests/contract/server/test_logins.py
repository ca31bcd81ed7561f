"""Logging in at a real provider on loopback: who gets in and as what, and every way in which a token is not good."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from access_yard import AccessYard
from airyard.core.access.people import People, Person
from airyard.core.access.roles import Kind, Role
from airyard.core.errors import Unavailable
from airyard.server.auth import unauthenticated
from airyard.server.config_oidc import OidcSection, ServiceTrust
from airyard.server.logins import LoginDesk
from oidc_provider import SECRET, Browser, LoginProvider, new_key
from server_yard import play

PORT = 4711


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoginProvider]:
    one = LoginProvider(tmp_path_factory.mktemp("provider"))
    try:
        one.start()
        one.person("bob", groups=["vision"], email="bob@lab.org", email_verified=True)
        one.person("zoe", groups=["gpu-ops"], email="zoe@lab.org", email_verified=True)
        one.person("mallory", groups=["vision"], email="mallory@elsewhere.org", email_verified=True)
        yield one
    finally:
        one.stop()


class LoginYard(AccessYard):
    """A yard at which people log in."""

    def __init__(self, home: Path, provider: LoginProvider, **settings: Any) -> None:
        super().__init__(home)
        home.mkdir(exist_ok=True)
        secret = home / "oidc.secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        trusts = (
            ServiceTrust(
                issuer=provider.issuer,
                audience="yard-services",
                subject="repo:lab/*:ref:main",
                user="nightly",
            ),
        )
        plain: dict[str, Any] = {
            "issuer": provider.issuer,
            "client_id": "airyard",
            "client_secret_file": str(secret),
            "roles": {"gpu-ops": "operator"},
            "services": trusts,
        }
        self.desk = LoginDesk(OidcSection(**{**plain, **settings}), rest_s=0)
        self.context.access.logins = self.desk
        nightly = Person(name="nightly", kind=Kind.SERVICE)
        self.users = People(owner="ada", known={**self.users.known, "nightly": nightly}, declared=True)

    def stop(self) -> None:
        self.desk.close()
        super().stop()

    def anybody(self) -> httpx.AsyncClient:
        """Return a client without a token, of the whole server."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=self.context.url)

    async def log_in(self, browser: Browser) -> httpx.Response:
        """Log in by the code flow as the command line does; return the last answer."""
        async with self.anybody() as client:
            begun = (await client.post("/api/v1/login/browser", json={"port": PORT})).json()
            back = httpx.URL(browser.follow(begun["url"]))
            assert (back.host, back.port, back.path) == ("127.0.0.1", PORT, "/callback")
            return await client.post(
                "/api/v1/login/finish", json={"handle": begun["handle"], **dict(back.params.items())}
            )

    async def as_service(self, token: str) -> httpx.Response:
        async with self.anybody() as client:
            return await client.post("/api/v1/login/service", json={"token": token})

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.context.access.audit.read()]


@pytest.fixture
def yard(tmp_path: Path, provider: LoginProvider) -> Iterator[LoginYard]:
    one = LoginYard(tmp_path / "home", provider)
    yield one
    one.stop()


@pytest.fixture
def bob(provider: LoginProvider) -> Iterator[Browser]:
    one = Browser(provider, "bob")
    yield one
    one.close()


def test_a_login_gives_a_token_that_ends(yard: LoginYard, bob: Browser, provider: LoginProvider) -> None:
    async def scene() -> None:
        answer = (await yard.log_in(bob)).json()
        token = answer["token"]
        assert (token["user"], token["kind"], token["valid"]) == ("bob", "person", True)
        assert token["expires_at"] is not None
        async with yard.client_of(answer["secret"]) as client:
            me = (await client.get("/whoami")).json()
            assert (me["name"], me["role"], me["groups"]) == ("bob", "user", ["vision"])
            assert (me["how"], me["issuer"]) == ("login", provider.issuer)
            # One's own tokens from it end with it, and have its groups.
            refused = await client.post("/tokens", json={"name": "for-good"})
            assert refused.json()["error_code"] == "TOKEN_TOO_WIDE"
            made = (
                await client.post("/tokens", json={"name": "night", "kind": "agent", "expires_s": 60})
            ).json()
        assert yard.principal(made["secret"]).groups == {"vision"}
        line = next(entry for entry in yard.audit() if entry["path"] == "/api/v1/login/finish")
        assert (line["principal"], line["verb"], line["object"], line["outcome"]) == (
            "bob",
            "create",
            "token",
            "done",
        )
        assert answer["secret"] not in json.dumps(yard.audit())

    play(scene())


def test_a_group_gives_a_role_and_the_next_login_reads_it_anew(
    yard: LoginYard, provider: LoginProvider
) -> None:
    zoe = Browser(provider, "zoe")

    async def scene() -> None:
        first = (await yard.log_in(zoe)).json()["secret"]
        assert yard.principal(first).role is Role.OPERATOR
        provider.person("zoe", groups=["vision"])
        assert yard.principal(first).role is Role.OPERATOR, "what was given out counts until it ends"
        second = (await yard.log_in(zoe)).json()["secret"]
        assert yard.principal(second).role is Role.USER

    try:
        play(scene())
    finally:
        zoe.close()
        provider.person("zoe", groups=["gpu-ops"])


def test_the_users_file_wins(yard: LoginYard, bob: Browser) -> None:
    async def scene() -> None:
        secret = (await yard.log_in(bob)).json()["secret"]
        yard.users = People(owner="ada", known={"bob": Person(name="bob", role=Role.VIEWER)}, declared=True)
        assert yard.principal(secret).role is Role.VIEWER
        yard.users = People(owner="ada", known={"bob": Person(name="bob", active=False)}, declared=True)
        async with yard.client_of(secret) as client:
            assert (await client.get("/whoami")).status_code == 401
        refused = await yard.log_in(bob)
        assert (refused.status_code, refused.json()["error_code"]) == (403, "LOGIN_NOT_ALLOWED")
        assert yard.audit()[-1]["name"] == "bob"

    play(scene())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"allowed_groups": ("nlp",)}, "in none of the groups"),
        ({"allowed_domains": ("other.org",)}, "lab.org, which this yard does not admit"),
        ({"default_role": "none"}, "none of the groups of bob has a role"),
        ({"user_claim": "upn"}, "'upn' names no user: it is missing"),
        ({"audience": "somebody-else"}, "for another audience"),
    ],
)
def test_who_is_not_admitted(
    tmp_path: Path, provider: LoginProvider, bob: Browser, settings: dict[str, Any], reason: str
) -> None:
    yard = LoginYard(tmp_path / "home", provider, **settings)

    async def scene() -> None:
        refused = await yard.log_in(bob)
        assert refused.status_code in (401, 403)
        assert reason in refused.json()["message"]
        assert yard.audit()[-1]["outcome"] == "refused"

    try:
        play(scene())
    finally:
        yard.stop()


def test_nothing_can_be_used_twice_or_for_another(yard: LoginYard, bob: Browser) -> None:
    async def scene() -> None:
        async with yard.anybody() as client:

            async def begin() -> tuple[str, dict[str, str]]:
                begun = (await client.post("/api/v1/login/browser", json={"port": PORT})).json()
                return begun["handle"], dict(httpx.URL(bob.follow(begun["url"])).params.items())

            async def finish(handle: str, **fields: str) -> tuple[int, str]:
                answer = await client.post("/api/v1/login/finish", json={"handle": handle, **fields})
                return answer.status_code, str(answer.json().get("message"))

            handle, back = await begin()
            assert (await finish(handle, **back))[0] == 200
            assert (await finish(handle, **back)) == (
                403,
                "this login is not known: it was finished already, or is too old",
            )
            # A code that was used already, in a login of its own.
            other, fresh = await begin()
            status, message = await finish(other, state=fresh["state"], code=back["code"])
            assert (status, "its code was used already" in message) == (401, True)
            # A code of another login: its verifier is another (PKCE).
            first, one = await begin()
            second, two = await begin()
            status, message = await finish(first, state=one["state"], code=two["code"])
            assert (status, "another login's" in message) == (401, True)
            # The state of another login; and then that login is over, too.
            status, message = await finish(second, state=one["state"], code=two["code"])
            assert (status, "its state is another" in message) == (401, True)
            assert (await finish(second, **two))[0] == 403
            handle, back = await begin()
            status, message = await finish(handle, state=back["state"], error="access_denied")
            assert (status, "access_denied" in message) == (401, True)
            assert (await finish("made-up", state="", code="x"))[0] == 403

    play(scene())


def test_a_nonce_of_another_login_is_refused(yard: LoginYard, bob: Browser, provider: LoginProvider) -> None:
    issuer = yard.desk._issuers[provider.issuer]
    good = provider.token(aud="airyard", nonce="mine", preferred_username="bob")
    assert issuer.verify(good, audience=["airyard"], party="airyard", nonce="mine")["sub"]
    for nonce in ("other", None):
        with pytest.raises(Exception, match="its nonce is another"):
            issuer.verify(
                provider.token(aud="airyard", nonce=nonce),
                audience=["airyard"],
                party="airyard",
                nonce="mine",
            )
    with pytest.raises(Exception, match="azp"):
        issuer.verify(provider.token(aud=["airyard", "x"]), audience=["airyard"], party="airyard")
    with pytest.raises(Exception, match="azp"):
        issuer.verify(provider.token(aud="airyard", azp="x"), audience=["airyard"], party="airyard")


def test_a_name_that_changed_hands_is_not_the_same_person(
    yard: LoginYard, bob: Browser, provider: LoginProvider
) -> None:
    thief = Browser(provider, "mallory")

    async def scene() -> None:
        first = (await yard.log_in(bob)).json()["token"]["token_id"]
        provider.person("mallory", preferred_username="bob")
        refused = await yard.log_in(thief)
        assert (refused.status_code, refused.json()["error_code"]) == (403, "ANOTHER_PERSON")
        async with yard.as_user("ada") as admin:
            assert (await admin.delete(f"/tokens/{first}")).status_code == 200
        assert (await yard.log_in(thief)).status_code == 200

    try:
        play(scene())
    finally:
        thief.close()
        provider.person("mallory")


def test_the_owners_name_is_taken(yard: LoginYard, bob: Browser, provider: LoginProvider) -> None:
    async def scene() -> None:
        provider.person("bob", preferred_username="ada")
        refused = await yard.log_in(bob)
        assert (refused.status_code, refused.json()["error_code"]) == (403, "LOGIN_NOT_ALLOWED")

    try:
        play(scene())
    finally:
        provider.person("bob", groups=["vision"], email="bob@lab.org", email_verified=True)


def test_a_device_login(yard: LoginYard, bob: Browser) -> None:
    async def scene() -> None:
        async with yard.anybody() as client:

            async def poll(handle: str) -> httpx.Response:
                return await client.post("/api/v1/login/poll", json={"handle": handle})

            begun = (await client.post("/api/v1/login/device")).json()
            declined = (await client.post("/api/v1/login/device")).json()
            bob.allow_device(declined["verification_uri"], declined["user_code"], "deny")
            handle = begun["handle"]
            assert 0 < (await poll(handle)).json()["wait_s"] <= begun["interval_s"], (
                "the provider is not asked yet"
            )
            time.sleep(begun["interval_s"])
            waiting = (await poll(handle)).json()
            assert (waiting["secret"], waiting["wait_s"] > 0) == (None, True)
            bob.allow_device(begun["verification_uri"], begun["user_code"])
            time.sleep(waiting["wait_s"])
            done = (await poll(handle)).json()
            assert done["token"]["user"] == "bob"
            assert yard.principal(done["secret"]).name == "bob"
            assert (await poll(handle)).json()["error_code"] == "LOGIN_EXPIRED"

            refused = await poll(declined["handle"])
            assert (refused.status_code, "declined" in refused.json()["message"]) == (401, True)

    play(scene())


def forged(provider: LoginProvider) -> dict[str, tuple[str, str]]:
    """Return bad tokens of a job by what is wrong with them, each with what is said of it."""
    now_s = int(time.time())
    good = provider.token()
    header, body, signature = good.split(".")
    public = serialization.load_pem_private_key(provider.pem.encode(), None).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def encoded(fields: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=").decode()

    def hs256() -> str:
        signed = f"{encoded({'alg': 'HS256', 'kid': provider.kid})}.{body}"
        mac = hmac.new(pem, signed.encode(), hashlib.sha256).digest()
        return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"

    claims = jwt.decode(good, options={"verify_signature": False})
    return {
        "wrong audience": (provider.token(aud="another"), "another audience"),
        "no audience": (provider.token(aud=None), "lacks the claim aud"),
        "wrong issuer": (provider.token(iss="https://evil.example.org"), "does not trust the provider"),
        "issuer with a slash": (provider.token(iss=provider.issuer + "/"), "does not trust the provider"),
        "expired": (provider.token(exp=now_s - 31), "has expired"),
        "no end": (provider.token(exp=None), "lacks the claim exp"),
        "not yet": (provider.token(nbf=now_s + 60), "not valid yet"),
        "a clock that is ahead": (provider.token(iat=now_s + 120, exp=now_s + 600), "clocks of the provider"),
        "no time": (provider.token(iat=None), "lacks the claim iat"),
        "no subject": (provider.token(sub=None), "lacks the claim sub"),
        "alg none": (f"{encoded({'alg': 'none', 'kid': provider.kid})}.{body}.", "signed with none"),
        "HS256 with the public key": (hs256(), "signed with HS256"),
        "another key of that id": (provider.token(pem=new_key()), "signature is wrong"),
        "changed": (
            f"{header}.{encoded({**claims, 'sub': 'repo:lab/x:ref:main'})}.{signature}",
            "signature is wrong",
        ),
        "extensions": (
            jwt.encode(
                claims, provider.pem, algorithm="RS256", headers={"kid": provider.kid, "crit": ["b64"]}
            ),
            "",
        ),
        "an unknown key": (
            jwt.encode(claims, new_key(), algorithm="RS256", headers={"kid": "made-up"}),
            "key that the provider does not publish",
        ),
        "no token": ("a.b.c", "no signed token"),
        "rubbish": ("x" * 70, "no signed token"),
        "another project": (provider.token(sub="repo:lab/train:ref:main2"), "trusts no job called"),
    }


def test_jobs_get_in_with_good_tokens_of_their_system_alone(yard: LoginYard, provider: LoginProvider) -> None:
    async def scene() -> None:
        good = await yard.as_service(provider.token())
        assert good.status_code == 200, good.text
        async with yard.client_of(good.json()["secret"]) as client:
            me = (await client.get("/whoami")).json()
            assert (me["name"], me["kind"], me["how"], me["scope"]) == ("nightly", "service", "job", "write")
            assert me["subject"] == "repo:lab/train:ref:main"
            assert (await client.post("/tokens", json={"name": "more", "expires_s": 9})).status_code == 403
        for what, (token, reason) in forged(provider).items():
            refused = await yard.as_service(token)
            assert refused.status_code in (401, 403), what
            assert refused.json()["error_code"] in ("LOGIN_FAILED", "LOGIN_NOT_ALLOWED"), what
            assert reason in refused.json()["message"], what
        now_s = int(time.time())
        nearly = await yard.as_service(provider.token(iat=now_s + 20, exp=now_s - 10))
        assert nearly.status_code == 200, "clocks may differ by half a minute"
        yard.users = People(owner="ada", known={"nightly": Person(name="nightly")}, declared=True)
        assert (await yard.as_service(provider.token())).status_code == 403, "a person is no service"
        async with yard.client_of(good.json()["secret"]) as client:
            assert (await client.get("/whoami")).status_code == 401, "nor is one that was"
        yard.users = People(owner="ada", declared=True)
        assert (await yard.as_service(provider.token())).status_code == 403
        async with yard.client_of(good.json()["secret"]) as client:
            assert (await client.get("/whoami")).status_code == 401, (
                "a service that the file does not know any more"
            )

    play(scene())


def test_a_provider_may_change_its_keys_and_go_away(tmp_path: Path) -> None:
    provider = LoginProvider(tmp_path / "provider")
    yard = LoginYard(tmp_path / "home", provider)

    async def scene() -> None:
        async with yard.anybody() as client:
            away = await client.post("/api/v1/login/browser", json={"port": PORT})
            assert (away.status_code, away.json()["error_code"]) == (503, "PROVIDER_AWAY")
            assert provider.issuer in away.json()["message"]
            provider.start()
            provider.person("bob")
            browser = Browser(provider, "bob")
            secret = (await yard.log_in(browser)).json()["secret"]
            before = provider.token()
            provider.rotate()
            assert (await yard.as_service(provider.token())).status_code == 200, (
                "an unknown key is looked for once"
            )
            old = await yard.as_service(before)
            assert (old.status_code, "does not publish" in old.json()["message"]) == (401, True)
            assert (await yard.log_in(browser)).status_code == 200
            begun = (await client.post("/api/v1/login/browser", json={"port": PORT})).json()
            back = httpx.URL(browser.follow(begun["url"]))
            provider.stop()
            broken = await client.post(
                "/api/v1/login/finish", json={"handle": begun["handle"], **dict(back.params.items())}
            )
            assert (broken.status_code, broken.json()["error"]["retryable"]) == (503, True)
            assert yard.principal(secret).name == "bob", "tokens go on counting"
            assert (await client.post("/api/v1/login/browser", json={"port": PORT})).status_code == 503
            assert (await client.post("/api/v1/login/device")).status_code == 503
            assert (await yard.as_service(provider.token())).status_code == 200, "known keys go on counting"
            browser.close()

    try:
        play(scene())
    finally:
        yard.stop()
        provider.stop()


def test_a_browser_logs_in_for_the_pages(yard: LoginYard, bob: Browser) -> None:
    async def scene() -> None:
        async with yard.anybody() as visitor:
            elsewhere = await visitor.get("/login?to=/mlflow/x", headers={"host": "yard.example.org"})
            assert elsewhere.headers["location"] == f"{yard.context.url}/login?here=1&to=%2Fmlflow%2Fx"
            begun = await visitor.get("/login?to=/mlflow/%23/experiments/1")
            cookie = begun.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            back = bob.follow(begun.headers["location"])
            assert back.startswith(f"{yard.context.url}/login/callback?")
            async with yard.anybody() as another:
                stolen = await another.get(back)
                assert (stolen.status_code, "set-cookie" in stolen.headers) == (403, True)
                assert "airyard_session" not in stolen.headers["set-cookie"]
            page = await visitor.get(back)
            assert page.status_code == 200, page.text
            assert 'content="0;url=/mlflow/#/experiments/1"' in page.text
            session = page.headers.get_list("set-cookie")
            assert any(
                "airyard_session" in one and "HttpOnly" in one and "SameSite=strict" in one for one in session
            )
            principal = yard.context.access.authorise(None, visitor.cookies["airyard_session"])
            assert (principal.name, principal.groups) == ("bob", {"vision"})
            again = await visitor.get(back)
            assert again.status_code == 403
            async with yard.as_user("ada") as admin:
                await admin.delete(f"/tokens/{principal.token_id}")
            with pytest.raises(Exception, match="not accepted"):
                yard.context.access.authorise(None, visitor.cookies["airyard_session"])
            away = await visitor.get("/login?to=//evil.example.org")
            back = bob.follow(away.headers["location"])
            assert 'content="0;url=/mlflow/"' in (await visitor.get(back)).text

    play(scene())


def test_a_page_without_a_session_leads_to_the_login(yard: LoginYard) -> None:
    @yard.app.get("/mlflow/{path:path}")
    def page(path: str) -> None:
        raise unauthenticated(given=False)

    async def scene() -> None:
        async with yard.anybody() as client:
            sent = await client.get("/mlflow/", headers={"accept": "text/html,*/*"})
            assert (sent.status_code, sent.headers["location"]) == (303, "/login?to=%2Fmlflow%2F")
            sent = await client.get("/mlflow/a?b=c&d=e", headers={"accept": "text/html"})
            assert sent.headers["location"] == "/login?to=%2Fmlflow%2Fa%3Fb%3Dc%26d%3De"
            assert (await client.get("/mlflow/version")).status_code == 401, "programs are told, not sent"
            given = {"accept": "text/html", "authorization": "Bearer guessed"}
            assert (await client.get("/mlflow/", headers=given)).status_code == 401, (
                "a refusal, for the audit"
            )
            wrong = await client.get("/api/v1/runs", headers={"accept": "text/html"})
            assert wrong.status_code == 401

    play(scene())


def test_a_yard_without_a_provider_says_so(tmp_path: Path) -> None:
    yard = AccessYard(tmp_path / "home")

    async def scene() -> None:
        transport = httpx.ASGITransport(yard.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://yard") as client:
            answer = await client.get("/api/v1/login")
            assert (answer.status_code, answer.json()["error_code"]) == (404, "NO_LOGIN_PROVIDER")
            assert (await client.get("/login")).status_code == 404

    try:
        play(scene())
    finally:
        yard.stop()


def test_logins_that_nobody_finishes_are_bounded(yard: LoginYard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airyard.server.logins.MOST_OF_ADDRESS", 3)

    async def scene() -> None:
        async with yard.anybody() as client:
            for _ in range(3):
                assert (await client.post("/api/v1/login/browser", json={"port": PORT})).status_code == 200
            full = await client.post("/api/v1/login/browser", json={"port": PORT})
            assert (full.status_code, full.json()["error_code"]) == (503, "TOO_MANY_LOGINS")

    play(scene())


def test_strangers_who_wait_for_a_provider_are_bounded(
    yard: LoginYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airyard.server.logins.MOST_ASKING", 0)

    async def scene() -> None:
        async with yard.anybody() as client:
            full = await client.post("/api/v1/login/browser", json={"port": PORT})
            assert (full.status_code, full.json()["error_code"]) == (503, "TOO_MANY_LOGINS")

    play(scene())
    desk = yard.context.access.logins
    assert desk is not None
    monkeypatch.setattr("airyard.server.logins.MOST_ASKING", 1)
    with desk.turn(), pytest.raises(Unavailable), desk.turn():
        pass
    with desk.turn():
        pass
