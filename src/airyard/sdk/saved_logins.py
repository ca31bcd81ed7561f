"""The tokens of this person's logins, in one file of the data folder that nobody else reads.

Owns: ``AIRYARD_HOME/logins.json`` (0600): server → token, user, end. Must not know: HTTP, how one logs in.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

NAME = "logins.json"
TRIED_MS = 24 * 3_600_000
"""So long after its end a token is still sent: the server says then whose login it was and what to do."""


def token_for(home: Path, host: str) -> str | None:
    """Return the token of the login at a server (of several the first that has one); None where there is none."""
    found = login_at(home, host)
    if found is None or float(found.get("expires_ms", 0)) + TRIED_MS < time.time() * 1000:
        return None
    return str(found["token"])


def login_at(home: Path, host: str) -> dict[str, Any] | None:
    """Return what is saved of the login at a server: ``{token, token_id, user, expires_ms}``."""
    logins = _read(home)
    for server in _servers(host):
        found = logins.get(server)
        if isinstance(found, dict) and isinstance(found.get("token"), str):
            return found
    return None


def save(home: Path, host: str, login: dict[str, Any]) -> Path:
    """Keep a login, in the place of an earlier one at the same server; return the file."""
    return _write(home, {**_read(home), **dict.fromkeys(_servers(host), login)})


def forget(home: Path, host: str) -> None:
    """Drop the login at a server, if there is one."""
    logins = _read(home)
    kept = {server: login for server, login in logins.items() if server not in _servers(host)}
    if kept != logins:
        _write(home, kept)


def _servers(host: str) -> list[str]:
    """Return the addresses in a host that may name several, each in one spelling."""
    parts = [part.strip().rstrip("/") for part in host.split(",") if part.strip()]
    return [part if "://" in part else f"http://{part}" for part in parts]


def _read(home: Path) -> dict[str, Any]:
    try:
        found = json.loads((home / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(home: Path, logins: dict[str, Any]) -> Path:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / NAME
    draft = home / f"{NAME}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(logins, file, indent=1)
    draft.replace(path)
    return path
