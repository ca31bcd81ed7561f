"""Ships what a runner that died left of its log, in its place.

Owns: the hand-over of a spool without its runner. Must not know: why the runner died, the agent's protocol.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from airyard.node.exit_record import AttemptFolder
from airyard.node.runner_http import AttemptIsOver, Channel, Patience, Refused, ServerAway, Servers
from airyard.node.runner_threads import closed_output
from airyard.node.spool import LogSpool

GIVE_UP_S = 120.0
"""The asker asks again; a thread must not wait for a server that is away."""
_TIMEOUT_S = 60.0
_BATCH_BYTES = 4 * 1024 * 1024
_BEYOND_ANY_RUNNER = 1_000_000_000
"""Report numbers from here on are the agent's: no runner gets that far, and the server drops repeats."""


def ship_rest(folder: AttemptFolder, servers: Servers, token: str) -> bool:
    """Send the spool's rest and LOGS_CLOSED; False when the server did not take it all in time.

    Holds the folder's lock meanwhile, so that it can be called for a dead runner only.
    """
    lock = folder.lock()
    if lock is None:
        return False
    channel = Channel(servers, token)
    try:
        return _ship(folder, channel)
    except AttemptIsOver:
        return True
    finally:
        channel.close()
        os.close(lock)


def close_unwritten(key: str, servers: Servers, token: str) -> bool:
    """Send LOGS_CLOSED for a runner that never came to be; False when the server did not take it in time."""
    channel = Channel(servers, token)
    deadline = time.monotonic() + GIVE_UP_S
    patience = Patience(f"log of {key}")
    try:
        while time.monotonic() < deadline:
            try:
                _close({"last_seq": -1, "sha256": ""}, channel)
            except (ServerAway, Refused) as problem:
                patience.wait(problem)
            else:
                return True
        return False
    except AttemptIsOver:
        return True
    finally:
        channel.close()


def _ship(folder: AttemptFolder, channel: Channel) -> bool:
    closed = (folder.exit() or {}).get("logs")
    if closed is not None and not closed.get("sha256"):
        closed = None  # the runner gave up while the server was away: the spool has the rest
    spool = LogSpool(_existing(folder.spool)) if closed is None else None
    deadline = time.monotonic() + GIVE_UP_S
    patience = Patience(f"log of {folder.key}")
    try:
        while time.monotonic() < deadline:
            try:
                if spool is not None:
                    _empty(spool, channel)
                    end = closed_output(spool)
                    closed = {"last_seq": end.last_seq, "sha256": end.sha256}
                _close(closed or {}, channel)
            except (ServerAway, Refused) as problem:
                patience.wait(problem)
            else:
                return True
        return False
    finally:
        if spool is not None:
            spool.close()


def _existing(spool: Path) -> Path:
    spool.mkdir(parents=True, exist_ok=True)
    return spool


def _empty(spool: LogSpool, channel: Channel) -> None:
    """Send every batch. What the server has beyond the spool, or lacks before it, the spool works out."""
    first = True
    while first or not spool.is_drained:
        batch = spool.batch(_BATCH_BYTES)
        first = False
        try:
            answer = channel.post_bytes("logs", batch, timeout_s=_TIMEOUT_S)
        except Refused as refusal:
            if refusal.status != 409 or "next" not in refusal.body:
                raise
            spool.resync(int(refusal.body["next"]))
        else:
            spool.acknowledge(int(answer["next"]))


def _close(closed: dict[str, object], channel: Channel) -> None:
    report = {
        "number": _BEYOND_ANY_RUNNER,
        "kind": "LOGS_CLOSED",
        "at_ns": time.time_ns(),
        "last_seq": closed["last_seq"],
        "sha256": closed["sha256"],
    }
    body = {"protocol": channel.servers.spoken, "epoch": 0, "sent_ns": time.time_ns(), "reports": [report]}
    channel.post_json("reports", body, timeout_s=_TIMEOUT_S)
