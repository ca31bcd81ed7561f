"""How a server comes to lead, and what it then has: the composition of the standby.

Owns: what a waiting server is made of, addresses as others reach it. Must not know: what a leader serves.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import airyard
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.leader_sql import SqlLeaderSeat
from airyard.adapters.log_files import FileLogStore
from airyard.adapters.sql_database import Database
from airyard.adapters.sqlite_engine import SqliteDatabase
from airyard.core.access.people import People
from airyard.core.errors import UserError
from airyard.core.state import ClusterState
from airyard.ports.journal import Journal
from airyard.server.auth import Gatekeeper
from airyard.server.config import Config, StandbySection
from airyard.server.doors import Doors
from airyard.server.fleet import advertised
from airyard.server.leading import LedJournal, LedLogStore
from airyard.server.premises import Premises
from airyard.server.standby import Follower, Inheritance, Standby, answering


def wait_to_lead(
    premises: Premises, database: Database, config: Config, doors: Doors, people: Callable[[], People]
) -> Inheritance | None:
    """Stand by until this server leads; None when it was asked to stop first. Raises: UserError. Main thread."""
    if isinstance(database, SqliteDatabase):
        raise UserError(
            "[standby] shared is set, and the journal is a file: servers can share one in PostgreSQL only",
            code="BAD_CONFIG",
            fix="set [journal] url; docs/operate/standby.md has the whole of it",
        )
    host, port, url = address_of(doors.private)
    started_ms = time.time_ns() // 1_000_000
    premises.note_holder(started_ms, host, port)
    follower = Follower(database)
    gatekeeper = Gatekeeper(
        owner=getpass.getuser(),
        token=premises.token(),
        attempt_key=premises.attempt_key(),
        people=people,
    )
    gatekeeper.connect(follower.token, lambda: time.time_ns() // 1_000_000)
    standby = Standby(
        SqlLeaderSeat(database),
        follower,
        me=premises.server_id(),
        url=doors.public_url or url,
        lease_ms=int(config.standby.lease_s * 1000),
        proof=gatekeeper.proof,
    )
    endpoint = endpoint_of(host, port, url, started_ms)
    with answering(standby, doors, config.server, lambda: premises.announce(endpoint)):
        inherited = standby.wait()
    if inherited is None:
        premises.withdraw()
    return inherited


def led_journal(inherited: Inheritance | None, database: Database) -> tuple[Journal, ClusterState | None]:
    """Return the journal, and the state with it where a standby has followed it."""
    if inherited is None:
        return SqlJournal(database), None
    return LedJournal(inherited.journal, inherited.leading), inherited.state


def led_logs(inherited: Inheritance | None, folder: Path) -> FileLogStore:
    """Return the log store, which among several servers only the leader writes."""
    return FileLogStore(folder) if inherited is None else LedLogStore(folder, inherited.leading)


def term_of(inherited: Inheritance | None) -> int | None:
    """Return the term in which this server leads among several; None where it is alone."""
    return None if inherited is None else inherited.leading.term


def addresses(url: str, section: StandbySection) -> tuple[str, ...]:
    """Return where a leader may be found: at ``url``, then wherever else."""
    return (url, *(other for other in section.servers if other != url))


def address_of(listener: socket.socket) -> tuple[str, int, str]:
    """Return host, port and URL of a plain listener."""
    host, port = listener.getsockname()[:2]
    host = advertised(host)
    return host, port, f"http://{f'[{host}]' if ':' in host else host}:{port}"


def endpoint_of(host: str, port: int, url: str, started_ms: int) -> dict[str, Any]:
    """Return what a server says of itself in ``endpoint.json``."""
    return {
        "host": host,
        "port": port,
        "url": url,
        "pid": os.getpid(),
        "version": airyard.__version__,
        "started_ms": started_ms,
    }
