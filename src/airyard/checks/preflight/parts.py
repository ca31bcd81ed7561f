"""The parts of a full round that a node has passed, kept beside its certificate, until together they are one.

Owns: their file, when they make a certificate. Must not know: which parts there are, how checks run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from airyard.checks.contract import Profile
from airyard.checks.preflight import certificate
from airyard.checks.preflight.certificate import LASTS_MS, Certificate, Identity
from airyard.core.health.facts import CheckResult


def take(
    path: Path,
    identity: Identity,
    part: str,
    parts: Sequence[str],
    results: Sequence[CheckResult],
    now_ms: int,
) -> Certificate | None:
    """Keep a part that was passed, and return the certificate once all are; it is as old as the oldest of them.

    A part that was not passed is forgotten. Raises: OSError.
    """
    known = _load(path, identity, now_ms)
    known.pop(part, None)
    made = certificate.issue(identity, Profile.FULL, results, now_ms)
    if made is not None:
        known[part] = {"issued_ms": now_ms, "checks": list(made.checks)}
    if made is None or any(each not in known for each in parts):
        _store(path, identity, known)
        return None
    forget(path)
    issued_ms = min(int(known[each]["issued_ms"]) for each in parts)
    checks = tuple(check for each in parts for check in known[each]["checks"])
    return replace(made, issued_ms=issued_ms, expires_ms=issued_ms + LASTS_MS, checks=checks)


def forget(path: Path) -> None:
    """Remove all: something failed, or they were made a certificate."""
    with suppress(FileNotFoundError):
        path.unlink()


def _load(path: Path, identity: Identity, now_ms: int) -> dict[str, Any]:
    """Return the parts that count still: of this boot, driver, GPUs and limits, and not older than a certificate."""
    try:
        body = json.loads(path.read_text("utf-8"))
        who = body["identity"]
        if Identity(**{**who, "uuids": tuple(who["uuids"])}) != identity:
            return {}
        return {
            str(name): each
            for name, each in body["parts"].items()
            if int(each["issued_ms"]) <= now_ms < int(each["issued_ms"]) + LASTS_MS
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _store(path: Path, identity: Identity, known: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(json.dumps({"identity": asdict(identity), "parts": known}), "utf-8")
    os.replace(new, path)  # a power cut may lose it: then a part is tested again
