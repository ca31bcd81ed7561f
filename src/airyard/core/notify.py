"""Who is told of what: the kinds of notifications, and what a workload's ``notify`` asks.

Owns: the kinds, the rule of a workload, what an address may look like. Must not know: events, delivery.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

MAX_RULES = 16
"""So many rules one workload may have."""
MAX_ADDRESS_CHARACTERS = 2048
SECRET_ADDRESS = re.compile(r"\{\{\s*secrets/([^/\s{}]+)/([^/\s{}]+)\s*\}\}")
"""An address that is a secret itself, as those of chat services are: scope and key."""


class RunNotice(Enum):
    """What may be told of a run."""

    FAILED = "failed"
    """It ended and failed, or ran out of time; nothing more is tried."""
    PREEMPTED = "preempted"
    """An attempt had to leave, and the run waits for another place."""
    STALLED = "stalled"
    """It makes no progress."""
    DONE = "done"
    """It ended, however it did."""


class FleetNotice(Enum):
    """What may be told of the yard."""

    NODE_CORDONED = "node_cordoned"
    NODE_QUARANTINED = "node_quarantined"
    NODE_RETIRED = "node_retired"
    NODE_BACK = "node_back"
    """A node that had been taken out works again, on probation."""
    BREAKER_OPEN = "breaker_open"
    FABRIC_FAULT = "fabric_fault"
    """Pair tests found an edge, a leaf switch or a rail to be bad that was not before."""
    FABRIC_WELL = "fabric_well"
    """... and found one well again."""
    FACILITY_INCIDENT = "facility_incident"
    """Power or cooling slowed down several nodes of one rack or power domain at once."""
    FACILITY_WELL = "facility_well"
    """... and has not for a while."""
    SERVER_TAKEOVER = "server_takeover"
    """A server began to lead: after a start, or in place of another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyRule:
    """On which occasions a message goes where.

    ``to`` is an address, or ``{{secrets/scope/key}}`` for one that is a secret; ``secret`` (``scope/key``) signs.
    """

    on: tuple[RunNotice, ...]
    to: str
    secret: str | None = None

    @property
    def secrets(self) -> frozenset[str]:
        """The secrets (``scope/key``) that delivery needs."""
        named = SECRET_ADDRESS.fullmatch(self.to)
        found = {f"{named[1]}/{named[2]}"} if named else set()
        return frozenset(found | ({self.secret} if self.secret is not None else set()))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"on": [one.value for one in self.on], "to": self.to, "secret": self.secret}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NotifyRule:
        """Rebuild from ``to_json``. Raises: KeyError, ValueError for something else."""
        return cls(on=tuple(RunNotice(one) for one in data["on"]), to=data["to"], secret=data.get("secret"))


def check_address(text: str) -> str:
    """Return an address that messages can go to. Raises: ValueError saying what is wrong, without the address."""
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"has more than {MAX_ADDRESS_CHARACTERS} characters")
    if any(not "!" <= character <= "~" for character in text):
        raise ValueError("may hold printable ASCII characters only; encode others as %XX")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("cannot be read as an address") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("may hold no user and no password; sign with secret instead")
    if parts.fragment:
        raise ValueError("may have no part behind #")
    return text


def check_target(text: str) -> str:
    """Return where a workload's messages go: an address, or the name of a secret that holds one. Raises: ValueError."""
    return text if SECRET_ADDRESS.fullmatch(text) else check_address(text)


def shown_target(text: str) -> str:
    """Return a target as it may be shown: without path and query, which may be secret."""
    if SECRET_ADDRESS.fullmatch(text):
        return text
    parts = urlsplit(text)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port is not None else ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"
