"""How far this machine's clock is from the server's, by a few empty batches of reports.

Owns: the questions and their deadline. Must not know: what the offset is used for (``core/health/clocks``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from airyard.core.health.clocks import Reading, estimate
from airyard.node.runner_http import AttemptIsOver, Channel, Refused, ServerAway

_TIMES = 5
_MOST_S = 2.0


def measure(channel: Channel) -> Reading | None:
    """Return the offset of this machine's clock; None where no server answers. Cost: five round trips, 2 s at most."""
    try:
        return estimate(_asked(channel))
    finally:
        channel.close()


def _asked(channel: Channel) -> Iterator[tuple[int, int, int]]:
    until = time.monotonic() + _MOST_S
    for _ in range(_TIMES):
        left_s = until - time.monotonic()
        if left_s <= 0:
            return
        sent_ns = time.time_ns()
        body = {"protocol": channel.servers.spoken, "epoch": 0, "sent_ns": sent_ns, "reports": []}
        try:
            said = channel.post_json("reports", body, timeout_s=left_s)
            theirs_ns = int(said["server_time_ns"])
        except (ServerAway, AttemptIsOver, Refused, KeyError, ValueError, TypeError):
            return
        yield sent_ns, theirs_ns, time.time_ns()
