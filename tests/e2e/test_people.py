"""Two users on one server, over TLS: each sees what is theirs, and what the other opened to them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from e2e.yard import Yard, wait_for

pytestmark = pytest.mark.e2e
SECRET_PLAN = "for i in $(seq 200); do echo 'not for eve'; sleep 0.3; done"
USERS = "users:\n  bob: {groups: [vision]}\n  eve: {role: viewer}\n"


def write_certificate(folder: Path) -> None:
    """Write a certificate of its own for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "yard")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


class User:
    """One user's command line, from elsewhere: by address and token alone."""

    def __init__(self, yard: Yard, token: str) -> None:
        self.token = token
        port = json.loads((yard.home / "server" / "ports.json").read_text())["https"]
        self._yard = yard
        self._environment = {
            "AIRYARD_HOST": f"https://127.0.0.1:{port}",
            "AIRYARD_TOKEN": token,
            "AIRYARD_CA_FILE": str(yard.home / "cert.pem"),
        }

    def call(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return self._yard.call(*arguments, **{**self._environment, **changes})

    def data(self, *arguments: str) -> Any:
        done = self.call("-o", "json", *arguments)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)["data"]

    def code(self, *arguments: str, **changes: str) -> str:
        """Run what must fail; return the error's code."""
        done = self.call("-o", "json", *arguments, **changes)
        assert done.returncode != 0, done.stdout
        return str(json.loads(done.stdout)["error"]["code"])


@pytest.fixture
def closed_yard(tmp_path: Path, environment_cache: Path) -> Iterator[Yard]:
    """A yard that is not up yet."""
    yard = Yard(tmp_path, environment_cache)
    yield yard
    yard.close()


def open_with_tls(yard: Yard) -> None:
    """Start the server for other machines: without TLS it refuses, with it it serves."""
    write_certificate(yard.home)
    (yard.home / "users.yaml").write_text(USERS)
    config = '[server]\nhost = "0.0.0.0"\n[people]\nfile = "users.yaml"\n[environments.6]\npackages = []\n'
    (yard.home / "config.toml").write_text(config)
    refused = yard.call("up")
    assert "there is no TLS" in refused.stderr
    (yard.home / "config.toml").write_text(
        config.replace("[people]", 'tls = {certificate = "cert.pem", key = "key.pem"}\n[people]')
    )
    yard.up()


def test_two_users_over_tls(closed_yard: Yard) -> None:
    yard = closed_yard
    open_with_tls(yard)
    bob = User(yard, yard.ok("token", "create", "--for", "bob", "--name", "laptop").strip())
    made = yard.data("token", "create", "--for", "eve", "--name", "phone", "--scope", "read")
    eve = User(yard, made["secret"])

    shared = {"permissions": [{"level": "CAN_VIEW", "user_name": "eve"}]}
    open_run = bob.data("run", yard.file("echo for eve", **shared))["run_id"]
    own_run = bob.data("run", yard.file(SECRET_PLAN, name="bobs-secret-plan"))["run_id"]
    assert bob.call("watch", str(open_run)).returncode == 0

    assert [run["run_id"] for run in eve.data("list")["runs"]] == [open_run]
    assert "for eve" in eve.call("logs", str(open_run)).stdout
    for arguments in (
        ["logs", str(own_run)],
        ["get", str(own_run)],
        ["get", "bobs-secret-plan"],
        ["pull", str(own_run)],
    ):
        assert eve.code(*arguments) == "RUN_NOT_FOUND"
    assert eve.code("cancel", str(own_run)) == "FORBIDDEN"
    assert eve.code("run", yard.file("true")) == "FORBIDDEN"
    assert bob.code("apply", "--show", AIRYARD_TOKEN=bob.token + "x") == "NOT_AIRYARD"
    assert bob.code("admin", "verify") == "FORBIDDEN"
    assert bob.code("list", AIRYARD_CA_FILE="") == "CERTIFICATE"
    nodes = json.dumps(eve.data("nodes"))
    assert str(own_run) in nodes
    assert "bobs-secret-plan" not in nodes

    (yard.home / "users.yaml").write_text(USERS + "  mallory: {role: king}\n")
    problem = wait_for(lambda: yard.data("status")["access"]["users_file_problem"], what="the refusal")
    assert "users.yaml:4" in problem
    assert bob.data("get", str(own_run))["status"] in ("QUEUED", "PREPARING", "RUNNING")
    (yard.home / "users.yaml").write_text("users:\n  bob: {groups: [vision]}\n")
    wait_for(lambda: eve.call("list").returncode == 4, what="eve to be gone")

    listed = {token["name"]: token for token in yard.data("token", "list")["tokens"]}
    assert listed["laptop"]["last_used_at"]
    assert not listed["phone"]["valid"]
    follower = subprocess.Popen(
        yard.command("logs", str(own_run)),
        env={**yard._environment, **bob._environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert "not for eve" in follower.stdout.readline()
    yard.ok("token", "revoke", listed["laptop"]["token_id"])
    assert bob.code("list") == "TOKEN_NOT_VALID"
    assert follower.wait(timeout=60) != 0, "a stream of a revoked token is cut"
    follower.communicate()
    yard.ok("cancel", str(own_run))

    audit = [json.loads(line) for line in yard.ok("-o", "json", "admin", "audit").splitlines()]
    seen = {(entry["principal"], entry["verb"], entry["object"], entry["outcome"]) for entry in audit}
    assert {
        ("bob", "create", "run", "done"),
        ("eve", "view", "log", "done"),
        ("eve", "view", "run", "refused"),
        ("eve", "manage", "run", "refused"),
    } <= seen
    assert bob.token not in json.dumps(audit)
    assert "delete" in {entry["verb"] for entry in audit if entry["object"] == "token"}
    assert yard.data("admin", "verify")["differences"] == []
