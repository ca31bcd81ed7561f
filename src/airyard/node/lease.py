"""How a runner keeps its lease: how often it asks for orders, how long it waits, whose answers count.

Owns: the pace of renewals, the refusal of answers by an older leader, the note by which an agent sees to it that a
lease is kept even when its runner hangs. Must not know: HTTP, threads. What happens at its end is ``machine.py``'s.

Standard library only.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from airyard.node.exit_record import AttemptFolder

USUAL_WAIT_S = 20.0
USUAL_TIMEOUT_S = 35.0
LONGEST_PAUSE_S = 2.0
RENEWALS_A_LEASE = 6
"""Some may be lost, and one may hang until its time is up, before a lease runs out."""
OVERDUE_MS = 1000
"""An agent leaves a runner so long to end its member at the end of the lease. Less than the server's margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a runner polls: ``wait_s`` is what the server may take when there is nothing to say.

    ``timeout_s``: after so long without an answer the poll is lost and the next one is sent. ``pause_s``: the longest
    pause between two polls while the server is away.
    """

    wait_s: float = USUAL_WAIT_S
    timeout_s: float = USUAL_TIMEOUT_S
    pause_s: float = LONGEST_PAUSE_S


def pace_of(lease_s: float | None) -> Pace:
    """Return how to poll under a lease; None: there is none, and nothing hurries."""
    if lease_s is None:
        return Pace()
    share_s = lease_s / RENEWALS_A_LEASE
    return Pace(
        wait_s=min(USUAL_WAIT_S, share_s),
        timeout_s=min(USUAL_TIMEOUT_S, 2 * share_s),
        pause_s=min(LONGEST_PAUSE_S, share_s / 2),
    )


def is_stale(epoch: int, seen: int) -> bool:
    """True when an answer comes from an older leader than one that was heard before; 0: a server that does not say."""
    return 0 < epoch < seen


def note_lease(folder: AttemptFolder, until_boot_ms: int) -> None:
    """Note until when the member may run. A disk that refuses is no reason to end: the runner counts, too."""
    with contextlib.suppress(OSError):
        folder.lease_file.write_text(f"{until_boot_ms:020d}", encoding="ascii")


def lease_is_overdue(folder: AttemptFolder) -> bool:
    """True when the member's lease ended a while ago by CLOCK_BOOTTIME, and its runner should have ended it.

    A member with an exit record has no process any more: its runner may deliver what it has for as long as it takes.
    """
    if folder.exit_file.exists():
        return False
    try:
        until_ms = int(folder.lease_file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    return is_overdue(until_ms, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)


def is_overdue(until_boot_ms: int, boot_ms: int) -> bool:
    """True when a runner should have ended its member by now."""
    return boot_ms > until_boot_ms + OVERDUE_MS
