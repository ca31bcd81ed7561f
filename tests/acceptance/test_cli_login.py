"""Logging in from the command line, at a real provider and a real server: browser, device, job; whoami; logout."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from acceptance_yard import Yard
from oidc_provider import SECRET, Browser, LoginProvider

BROWSER = """
import sys, urllib.request, http.cookiejar
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
try:
    opener.open("{root}/test/sign-in/bob")
except urllib.error.HTTPError:
    pass
opener.open(sys.argv[1]).read()
"""


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[LoginProvider]:
    one = LoginProvider(tmp_path / "provider")
    try:
        one.start()
        one.person("bob", groups=["vision"])
        yield one
    finally:
        one.stop()


def configure(yard: Yard, provider: LoginProvider) -> None:
    secret = yard.home / "oidc.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (yard.home / "users.yaml").write_text("users:\n  ci: {kind: service}\n")
    config = yard.home / "config.toml"
    config.write_text(
        config.read_text()
        + f"""
[people]
file = "users.yaml"

[people.oidc]
issuer = "{provider.issuer}"
client_id = "airyard"
client_secret_file = "oidc.secret"
roles = {{ vision = "operator" }}

[[people.oidc.services]]
issuer = "{provider.issuer}"
audience = "yard-services"
subject = "repo:lab/train:ref:main"
user = "ci"
"""
    )


def test_from_login_to_logout(own_yard: Yard, provider: LoginProvider, tmp_path: Path) -> None:
    yard = own_yard
    assert "local one is yours" in yard.run("login").stderr
    configure(yard, provider)
    assert yard.run("up").returncode == 0
    url = json.loads(yard.run("-o", "json", "status").stdout)["data"]["url"]
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER.format(root=provider.root))
    laptop = tmp_path / "laptop"
    yard.extra = {
        "AIRYARD_HOST": url,
        "AIRYARD_HOME": str(laptop),
        "BROWSER": f"{sys.executable} {browser} %s",
    }

    stranger = yard.run("list")
    assert (stranger.returncode, "airyard login" in stranger.stderr) == (4, True)
    assert yard.run("logout").returncode == 2
    done = yard.run("login")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"logged in to {url} as bob \(operator, vision\) until .*\n", done.stdout)
    kept = laptop / "logins.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    saved = json.loads(kept.read_text())[url]
    who = yard.run("whoami").stdout
    assert "bob (operator)" in who
    assert f"a login at {provider.issuer}" in who
    name = yard.write("small", "true", accelerator="CPU")
    assert yard.run("run", name, "--watch").returncode == 0

    provider.stop()
    away = yard.run("login", "--device")
    assert (away.returncode, provider.issuer in away.stderr) == (5, True)
    assert yard.run("list").returncode == 0, "what was given out counts without the provider"
    provider.start()

    assert yard.run("logout").stdout == f"logged out of {url}\n"
    assert yard.run("list").returncode == 4
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {saved['token']}"}) as client:
        assert client.get("/api/v1/runs").json()["error_code"] == "TOKEN_NOT_VALID"

    device_login(yard, provider)
    (tmp_path / "job.jwt").write_text(provider.token())
    assert yard.run("login", "--job-token", str(tmp_path / "job.jwt")).returncode == 0
    who = yard.run("whoami").stdout
    assert f"repo:lab/train:ref:main of {provider.issuer}" in who
    yard.extra.pop("AIRYARD_HOST")
    (laptop / "config.toml").write_text(f'[client]\nhost = "{url}"\n')
    again = yard.run("login", "--job-token", str(tmp_path / "job.jwt"))
    assert (again.returncode, "goes before this login" in again.stderr) == (0, False), again.stderr
    (laptop / "config.toml").write_text(f'[client]\nhost = "{url}"\ntoken = "{saved["token"]}"\n')
    beside = yard.run("login", "--job-token", str(tmp_path / "job.jwt"))
    assert (beside.returncode, "goes before this login" in beside.stderr) == (0, True), beside.stderr
    (laptop / "config.toml").unlink()
    yard.extra["AIRYARD_HOST"] = url
    who = yard.run("whoami").stdout
    (tmp_path / "job.jwt").write_text(provider.token(aud="another"))
    refused = yard.run("login", "--job-token", str(tmp_path / "job.jwt"))
    assert (refused.returncode, "another audience" in refused.stderr) == (4, True)
    assert yard.run("whoami").stdout == who, "a login that fails leaves the last one"
    elsewhere = yard.run("--host", "http://yard.example.org", "login")
    assert (elsewhere.returncode, "not reached over TLS" in elsewhere.stderr) == (4, True)


def device_login(yard: Yard, provider: LoginProvider) -> None:
    """Log in where no browser is: the code is typed elsewhere."""
    process = yard.spawn("login", "--device")
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.search(r"open (\S+) and enter the code (\S+)", line)
    assert found, line + process.stderr.read()
    bob = Browser(provider, "bob")
    bob.allow_device(found[1], found[2])
    bob.close()
    out, _ = process.communicate(timeout=60)
    assert "as bob" in out
