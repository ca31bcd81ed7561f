"""Whom this machine trusts to be the yard's server: the CA that its join named, else what the system trusts.

Owns: the file in the node's folder, contexts made from it, what a refused certificate means. Must not know: requests.
Standard library only.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from airyard.core.errors import AiryardError, Denied, UserError

VARIABLE = "AIRYARD_CA_FILE"
_EXPIRED, _NOT_YET = 10, 9
_NO_ISSUER = (18, 19, 20, 21)
_OTHER_NAME = (62, 64)


def kept_ca(node_folder: Path) -> Path | None:
    """Return the file (PEM) that the join put into the node's folder; None where it named none."""
    path = node_folder / "ca.pem"
    return path if path.exists() else None


def keep_ca(node_folder: Path, given: Path | None) -> None:
    """Keep a copy of the CA for all that asks the server from here, and forget an older one. Raises: OSError."""
    path = node_folder / "ca.pem"
    if given is None:
        path.unlink(missing_ok=True)
    elif not path.exists() or not path.samefile(given):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(given.read_bytes())
        temporary.chmod(0o644)  # no secret, and read by jobs of other accounts
        temporary.replace(path)


def context_of(ca_file: Path | None) -> ssl.SSLContext:
    """Trust what the file holds and nothing else; without one, what this machine trusts. Raises: UserError."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{ca_file} cannot be used as the certificate of a CA: {error.strerror or error}.",
            code="BAD_CA_FILE",
            fix=f"Name a PEM file with --ca-file or {VARIABLE}.",
        ) from None
    if ca_file is not None:
        # The server's own certificate will do, whoever signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def certificate_problem(url: str, host: str, error: BaseException) -> AiryardError | None:
    """Return the error that says what is wrong with a server's certificate and what to do; None for another one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what, fix = _what(error, host)
        return Denied(f"The certificate of {url} {what}.", code="CERTIFICATE", fix=fix)
    if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return UserError(
            f"{url} speaks no TLS.",
            code="NO_TLS",
            fix="Say http://HOST:PORT, or start the server with [server] tls.",
        )
    return None


def _what(error: ssl.SSLCertVerificationError, host: str) -> tuple[str, str]:
    if error.verify_code == _EXPIRED:
        return "has expired", "Renew it on the server ([server] tls), start the server again, then join."
    if error.verify_code == _NOT_YET:
        return "is not valid yet", "Set the clocks of both machines by NTP, then join."
    if error.verify_code in _NO_ISSUER:
        return (
            "was issued by nobody whom this machine trusts",
            "Copy the certificate of its CA (PEM) here, and join with --ca-file FILE.",
        )
    if error.verify_code in _OTHER_NAME:
        return (
            f"does not name {host}",
            "Call the server by a name or address of its certificate, or issue one that has this one, too.",
        )
    return f"is not trusted: {error.verify_message}", "Check [server] tls of the server, and --ca-file."
