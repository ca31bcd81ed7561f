"""A host as it is named on the command line: ``ssh://user@host:port``.

Owns: reading such names. Must not know: how a host is reached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

# What begins with a dash would be an option of ssh.
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to, and as whom. Empty and None: what ssh's own configuration says."""

    host: str
    user: str = ""
    port: int | None = None

    def __str__(self) -> str:
        """Return it as it is typed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"ssh://{user}{host}" + (f":{self.port}" if self.port is not None else "")

    def arguments(self) -> list[str]:
        """Return what ssh takes."""
        port = ["-p", str(self.port)] if self.port is not None else []
        return [*port, *(["-l", self.user] if self.user else []), "--", self.host]


def parse_target(text: str) -> Target:
    """Read ``ssh://[user@]host[:port]``. Raises: ValueError that says what is wrong."""
    shape = "ssh://user@host, with :port where it is another than 22"
    parts = urlsplit(text)
    if parts.scheme != "ssh" or not parts.hostname:
        raise ValueError(f"{text!r} is no host to be reached by SSH: it looks like {shape}")
    if parts.password is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(
            f"{text!r} has more than a host: it looks like {shape}; keys are named with --identity"
        )
    user, host = parts.username or "", parts.hostname
    plain = _WORD.fullmatch(host) or re.fullmatch(r"[0-9a-f:]+", host)
    if not plain or (user and not _WORD.fullmatch(user)):
        raise ValueError(f"{text!r} has a character that no host and no user has: it looks like {shape}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text!r}: a port is a number from 1 to 65535") from None
    return Target(host=host, user=user, port=port)
