"""Certificates for tests of TLS: a CA of one's own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Authority:
    """A CA whose certificate is ``ca`` (PEM)."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        made = _builder(self._name, self._name, self._key.public_key(), until=_now() + _DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *addresses: str, expired: bool = False) -> tuple[Path, Path]:
        """Write a server's certificate for these addresses and its key; return both files."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = _now() - _DAY if expired else _now() + _DAY
        names = x509.SubjectAlternativeName(
            [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            _builder(_named(name), self._name, key.public_key(), until=until)
            .add_extension(names, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate, secret = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, secret


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - 10 * _DAY)
        .not_valid_after(until)
    )
