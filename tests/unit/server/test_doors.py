"""Where a server may listen: beyond loopback only with TLS, or when that is waived."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.server.config import Config, ServerSection, TlsSection, load_config
from airyard.server.doors import check, is_loopback, tls_context


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("yard.example.org", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_only_loopback_needs_no_tls(host: str, inside: bool) -> None:
    assert is_loopback(host) == inside
    plain = ServerSection(host=host)
    if inside:
        check(plain)
    else:
        with pytest.raises(UserError) as caught:
            check(plain)
        assert caught.value.code == "TLS_REQUIRED"
        assert host in caught.value.message
    check(ServerSection(host=host, insecure=True))
    check(ServerSection(host=host, tls=TlsSection(certificate="c", key="k")))


def test_a_certificate_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    section = ServerSection(host="0.0.0.0", tls=TlsSection(certificate=str(tmp_path / "c.pem"), key="none"))
    with pytest.raises(UserError) as caught:
        tls_context(section)
    assert caught.value.code == "BAD_CERTIFICATE"


def test_the_files_are_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[server]\nhost = "0.0.0.0"\ntls = {certificate = "c.pem", key = "/etc/k.pem"}\n[people]\nfile = "users.yaml"\n'
    )
    config: Config = load_config(file, home=tmp_path)
    assert config.server.tls is not None
    assert config.server.tls.certificate == str(tmp_path / "c.pem")
    assert config.server.tls.key == "/etc/k.pem"
    assert config.people.file == str(tmp_path / "users.yaml")


@pytest.mark.parametrize(
    "url", ["airyard:8290", "ftp://yard", "https://", "http://a,http://b", "http://yard/api"]
)
def test_a_url_that_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"https://HOST:PORT"):
        ServerSection(url=url)


def test_a_url_is_what_others_are_told() -> None:
    assert ServerSection(url="https://yard.example/").url == "https://yard.example"
