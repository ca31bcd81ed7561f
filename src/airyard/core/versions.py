"""Which releases of Airyard work together, and which protocols this one speaks. Pure.

Owns: the number of every protocol and stored format, the rule of neighbours, the words of a refusal.
Must not know: who asks, how a message is carried. Standard library only: the runner reads it.

A release speaks the newest form of each protocol and the one before it (docs/adr/0014-rolling-upgrade.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from airyard.core.errors import UserError

_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """The forms of one protocol that this release speaks."""

    newest: int
    oldest: int

    def common(self, theirs: object, their_oldest: object = None) -> int | None:
        """Return the newest form that both speak; None when there is none. Numbers come from the other side."""
        if not isinstance(theirs, int) or isinstance(theirs, bool):
            return None
        spoken = min(self.newest, theirs)
        least = max(self.oldest, their_oldest if isinstance(their_oldest, int) else spoken)
        return spoken if spoken >= least else None

    def __str__(self) -> str:
        """Return them as a refusal names them."""
        return f"{self.oldest} to {self.newest}" if self.oldest != self.newest else f"{self.newest}"


AGENT = Spoken(newest=2, oldest=1)
"""Server and agent. 2: hello says both versions and what the server speaks, and each attempt its runner's version."""
RUNNER = Spoken(newest=2, oldest=1)
"""Runner and server. 2: a poll says what the runner speaks; reports follow what the server answered."""
CLIENT = Spoken(newest=1, oldest=1)
"""The native API, as ``identify`` says it."""
RELAY = Spoken(newest=1, oldest=1)
"""Bridge and relay, over Ray."""
ATTEMPT_FOLDER = Spoken(newest=1, oldest=1)
"""The files in an attempt's folder: runner.json, exit.json, lease, the spool. 1 is not written by name before 2."""


class Kinship(Enum):
    """What another release is to this one."""

    SAME = "same"
    OLDER = "older"
    """The release before."""
    NEWER = "newer"
    """The release after."""
    TOO_OLD = "too old"
    TOO_NEW = "too new"
    UNKNOWN = "unknown"
    """What it says is no version."""

    @property
    def works(self) -> bool:
        """True for neighbours."""
        return self not in (Kinship.TOO_OLD, Kinship.TOO_NEW)


def kinship(theirs: str, mine: str) -> Kinship:
    """Say what release ``theirs`` is to ``mine``. Patches of one minor version are the same release.

    The first release of a major version is the neighbour of every one of the major version before: which of them was
    the last, nobody can know in advance.
    """
    one, other = _release(theirs), _release(mine)
    if one is None or other is None:
        return Kinship.UNKNOWN
    if one == other:
        return Kinship.SAME
    (low, high) = sorted((one, other))
    near = high == (low[0], low[1] + 1) or high == (low[0] + 1, 0)
    if one < other:
        return Kinship.OLDER if near else Kinship.TOO_OLD
    return Kinship.NEWER if near else Kinship.TOO_NEW


def _release(version: str) -> tuple[int, int] | None:
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def order_of_upgrade(server: str, other: str, what: str) -> str:
    """Return what to do where a server and ``what`` of another release do not fit together."""
    if kinship(other, server) in (Kinship.NEWER, Kinship.TOO_NEW):
        return f"upgrade the server to {other} first, then its nodes (docs/operate/upgrade.md)"
    return (
        f"upgrade {what} to {server}; over more than one release go one at a time, the server first, "
        "then its nodes (docs/operate/upgrade.md)"
    )


def check_release(last: str, mine: str, *, live_attempts: int) -> None:
    """Refuse to take over a journal whose last leader is of a release too far away.

    Without live attempts any older release will do: nothing is left that would have to understand this one.
    Raises: UserError (``UPGRADE_TOO_FAR``, ``DOWNGRADE_TOO_FAR``).
    """
    found = kinship(last, mine)
    details = {"journal": last, "server": mine, "live_attempts": live_attempts}
    if found is Kinship.TOO_NEW:
        raise UserError(
            f"The journal was last written by Airyard {last}; this is Airyard {mine}. A server goes back by one "
            "release at most.",
            code="DOWNGRADE_TOO_FAR",
            fix=f"Start Airyard {last}, or the release before it; or put back the backup that was made before the "
            "upgrade (docs/operate/upgrade.md).",
            details=details,
        )
    if found is Kinship.TOO_OLD and live_attempts:
        raise UserError(
            f"The journal was last written by Airyard {last}; this is Airyard {mine}, and {live_attempts} runs are "
            "live: their runners and this server may not understand each other. Nothing was changed.",
            code="UPGRADE_TOO_FAR",
            fix=f"Go one release at a time, the server first, then its nodes; or start Airyard {last}, let the runs "
            "end, then upgrade (docs/operate/upgrade.md).",
            details=details,
        )
