"""What a node has passed, kept beside its agent, so that the next start on it pays nothing.

Owns: the certificate's form, when it holds, its file. Must not know: how checks run, what a failure leads to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airyard.checks.contract import Profile
from airyard.core.health.facts import CheckResult, CheckStatus

VERSION = 1
LASTS_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a certificate is of: it holds for nothing else. ``boot_id`` and ``driver`` are empty where none is told."""

    node: str
    boot_id: str = ""
    driver: str = ""
    uuids: tuple[str, ...] = ()
    rules: str = ""
    """The release of the checks and the version of their limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A profile that was passed: by whom, when, until when, and what was measured."""

    identity: Identity
    profile: Profile
    issued_ms: int
    expires_ms: int
    checks: tuple[dict[str, Any], ...] = ()

    def holds(self, identity: Identity, profile: Profile, now_ms: int) -> bool:
        """True when it says of this node, as it is now, that it passed at least this profile.

        A clock that was set back before the issue makes it void: nobody knows how old it is.
        """
        enough = self.profile is Profile.FULL or profile is Profile.FAST
        same = (
            identity.node == self.identity.node
            and identity.boot_id == self.identity.boot_id
            and identity.driver == self.identity.driver
            and identity.rules == self.identity.rules
            and set(identity.uuids) <= set(self.identity.uuids)
        )
        return enough and same and self.issued_ms <= now_ms < self.expires_ms


def issue(
    identity: Identity, profile: Profile, results: Sequence[CheckResult], now_ms: int
) -> Certificate | None:
    """Return a certificate for results without a FAIL or UNKNOWN, else None: what is not known was not passed."""
    if any(result.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN) for result in results):
        return None
    kept = tuple(
        {
            "check": result.check,
            "status": result.status.value,
            "device": result.device,
            "value": result.value,
            "threshold": result.threshold,
            "unit": result.unit,
        }
        for result in results
    )
    return Certificate(
        identity=identity, profile=profile, issued_ms=now_ms, expires_ms=now_ms + LASTS_MS, checks=kept
    )


def store(path: Path, certificate: Certificate) -> None:
    """Write it durably in place of the one before."""
    body = {
        "version": VERSION,
        "identity": asdict(certificate.identity),
        "profile": certificate.profile.value,
        "issued_ms": certificate.issued_ms,
        "expires_ms": certificate.expires_ms,
        "checks": list(certificate.checks),
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(body, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> Certificate | None:
    """Return the stored one; None where there is none, or what is there cannot be read as one."""
    try:
        body = json.loads(path.read_text("utf-8"))
        if body["version"] != VERSION:
            return None
        who = body["identity"]
        return Certificate(
            identity=Identity(**{**who, "uuids": tuple(who["uuids"])}),
            profile=Profile(body["profile"]),
            issued_ms=int(body["issued_ms"]),
            expires_ms=int(body["expires_ms"]),
            checks=tuple(body["checks"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def revoke(path: Path) -> None:
    """Remove it: something was seen that it no longer speaks for."""
    with suppress(FileNotFoundError):
        path.unlink()
