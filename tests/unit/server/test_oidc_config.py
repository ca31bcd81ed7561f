"""What ``[people.oidc]`` may say, and that the client's secret is nobody else's to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.access.roles import Role
from airyard.core.errors import UserError
from airyard.server.config import load_config
from airyard.server.config_oidc import OidcSection, read_secret
from airyard.server.logins import LoginDesk

WHOLE = """
[people.oidc]
issuer = "https://id.example.org"
client_id = "airyard"
client_secret_file = "oidc.secret"
roles = { gpu-ops = "operator" }
default_role = "none"
allowed_domains = ["Lab.org"]

[[people.oidc.services]]
issuer = "https://ci.example.org"
audience = "yard"
subject = "repo:lab/*"
user = "nightly"
"""


def load(folder: Path, text: str) -> OidcSection:
    file = folder / "config.toml"
    file.write_text(text)
    found = load_config(file, home=folder).people.oidc
    assert found is not None
    return found


def test_the_section_is_read_with_its_files_beside_it(tmp_path: Path) -> None:
    section = load(tmp_path, WHOLE)
    assert section.client_secret_file == str(tmp_path / "oidc.secret")
    rules = section.rules()
    assert (rules.roles, rules.default_role, rules.domains) == (
        {"gpu-ops": Role.OPERATOR},
        None,
        frozenset({"lab.org"}),
    )


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('client_id = "airyard"\n', "", "issuer and client_id go together"),
        ('"operator"', '"king"', "people.oidc.roles.gpu-ops"),
        ('"none"', '"nobody"', "people.oidc.default_role"),
        ('"repo:lab/*"', '"*"', "it would fit everybody"),
        ("client_secret_file", "client_secret_fil", 'did you mean "client_secret_file"?'),
        ('user = "nightly"', "", "people.oidc.services.0.user"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, before: str, after: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, WHOLE.replace(before, after))
    assert problem in caught.value.message


@pytest.mark.parametrize(
    "issuer", ["http://id.example.org", "id.example.org", "ftp://id.example.org", "http://127.0.0.1.evil.org"]
)
def test_a_provider_is_asked_over_tls_alone(issuer: str) -> None:
    with pytest.raises(UserError, match="no address of a login provider"):
        LoginDesk(OidcSection(issuer=issuer, client_id="airyard"))


def test_a_secret_that_others_may_read_is_no_start(tmp_path: Path) -> None:
    file = tmp_path / "oidc.secret"
    with pytest.raises(UserError, match="cannot be read"):
        read_secret(str(file))
    file.write_text("s3cret\n")
    file.chmod(0o640)
    with pytest.raises(UserError, match=r"others may read it \(mode 640\)"):
        read_secret(str(file))
    file.chmod(0o600)
    assert read_secret(str(file)) == "s3cret"
    file.write_text("")
    with pytest.raises(UserError, match="it is empty"):
        read_secret(str(file))
