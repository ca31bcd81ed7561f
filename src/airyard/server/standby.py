"""A server that waits to lead: follows the journal, tells callers who leads, takes the seat when it falls free.

Owns: the waiting loop, the warm state, the few answers of a server that does not lead.
Must not know: what a leader is made of (``compose``).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import structlog
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from airyard.adapters.journal_schema import too_new, version_of
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.journal_tables import SCHEMA_VERSION
from airyard.adapters.sql_database import Database
from airyard.app.control import check_readable_release
from airyard.app.leadership import SeatWatch
from airyard.core.access.tokens import Token
from airyard.core.errors import AiryardError, InvariantBroken, UserError
from airyard.core.state import ClusterState
from airyard.ports.leadership import LeaderSeat, Seat
from airyard.server.config import ServerSection
from airyard.server.doors import Beside, Doors, serve
from airyard.server.errors import error_response
from airyard.server.leading import Leading, not_leader, steady_ms
from airyard.server.requests import PREFIX
from airyard.server.routes_status import identity

LOOK_S = 0.25
AWAY_PAUSE_S = 0.5

_log = structlog.get_logger("airyard.standby")


class Follower:
    """The state as of the journal's end a moment ago, kept by reading what the leader writes. One thread writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._journal: SqlJournal | None = None
        self._state: ClusterState | None = None
        self._problem: AiryardError | None = None
        self._is_unread = False
        """The tables are of a schema that this version does not know."""

    def token(self, token_id: str) -> Token | None:
        """Return a token that was given out, as far as the journal has been followed. Any thread."""
        state = self._state
        return state.tokens.get(token_id) if state is not None else None

    @property
    def problem(self) -> AiryardError | None:
        """Why this server must not lead: the journal is of a release that it cannot follow."""
        return self._problem

    def follow(self) -> None:
        """Read on. Where the tables are of an older version there is nothing to follow. Raises: AiryardError."""
        if self._journal is None:
            self._begin()
        if self._journal is None or self._state is None:
            return
        version = self._state.version
        try:
            for recorded in self._journal.events_after(self._state.seq):
                self._state.apply(recorded)
            if self._state.version != version or self._is_unread:
                self._is_unread = True
                self._look_at_schema()
                self._is_unread = False
            check_readable_release(self._state)
            self._problem = None
        except (UserError, InvariantBroken) as error:
            self._problem = error
        self._state.departed.clear()

    def _look_at_schema(self) -> int | None:
        """Return the tables' schema. Raises: UserError for one that this version does not know."""
        engine = self._database.read_engine()
        try:
            with self._database.errors():
                found = version_of(engine)
                if found is not None and found > SCHEMA_VERSION:
                    raise too_new(self._database, engine, found)
                return found
        finally:
            engine.dispose()

    def _begin(self) -> None:
        try:
            if self._look_at_schema() != SCHEMA_VERSION:
                return  # nothing may be migrated under a leader that works
        except UserError as error:
            self._problem = error
            return
        journal = SqlJournal(self._database)
        snapshot = journal.open().snapshot
        self._state = ClusterState.from_json(dict(snapshot)) if snapshot is not None else ClusterState()
        self._journal = journal

    def hand_over(self) -> tuple[SqlJournal, ClusterState | None]:
        """Return the journal, and the state with it if it is warm and the journal open."""
        if self._journal is None:
            return SqlJournal(self._database), None
        return self._journal, self._state

    def close(self) -> None:
        """Release the journal."""
        if self._journal is not None:
            self._journal.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a server that begins to lead has."""

    leading: Leading
    journal: SqlJournal
    state: ClusterState | None
    """Warm: all that the journal had a moment ago; None: it is to be read."""
    silent_ms: int
    """Since when no leader before this one has answered anybody, at the latest; of CLOCK_BOOTTIME."""


class Standby:
    """One wait, from the start of a server to its turn."""

    def __init__(
        self,
        seat: LeaderSeat,
        follower: Follower,
        *,
        me: str,
        url: str,
        lease_ms: int,
        proof: Callable[[str, str | None], str],
    ) -> None:
        """``proof``: see ``AccessParts.proof``."""
        self._seat = seat
        self._follower = follower
        self._me = me
        self._url = url
        self._lease_ms = lease_ms
        self._proof = proof
        self._leader: Seat | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Give up waiting. Any thread."""
        self._stopped.set()

    def wait(self) -> Inheritance | None:
        """Return once this server leads; None: it was asked to stop first."""
        watch = SeatWatch(self._me, self._lease_ms)
        told = told_problem = told_away = ""
        first = True
        while not self._stopped.is_set():
            try:
                if first:
                    # So that what this server must not lead is known before the seat is taken.
                    self._follower.follow()
                    first = False
                seat = self._seat.look()
                may_take = watch.saw(seat, steady_ms())
                self._leader = seat
                problem = self._follower.problem
                if may_take and problem is None and (leading := self._take(seat)) is not None:
                    self._leader = None
                    journal, state = self._follower.hand_over()
                    silent_ms = steady_ms() if self._left(seat) else watch.over_ms
                    return Inheritance(leading=leading, journal=journal, state=state, silent_ms=silent_ms)
                self._follower.follow()
                if seat is not None and told != seat.url:
                    told = seat.url
                    _log.info("standing_by", leader=seat.url, term=seat.term)
                if problem is not None and told_problem != problem.message:
                    told_problem = problem.message
                    _log.error(
                        "cannot_lead", code=problem.code, error=problem.message, fix=str(problem.fix or "")
                    )
                if told_away:
                    told_away = ""
                    _log.info("follows_again")
            except AiryardError as error:
                if told_away != error.message:
                    told_away = error.message
                    _log.warning("cannot_follow", error=error.message, fix=str(error.fix or ""))
                self._stopped.wait(AWAY_PAUSE_S)
            self._stopped.wait(LOOK_S)
        self._follower.close()
        self._seat.close()
        return None

    def _left(self, seen: Seat | None) -> bool:
        """True for a seat that needed no waiting: its leader has said that it leaves, or has ended."""
        return seen is None or seen.free or seen.holder == self._me

    def _take(self, seen: Seat | None) -> Leading | None:
        sent_ms = steady_ms()
        term = self._seat.take(seen, self._me, self._url)
        if term is None:
            return None
        leading = Leading(self._seat, term=term, lease_ms=self._lease_ms, sent_ms=sent_ms)
        leading.start()
        _log.info("leading", term=term, before=seen.url if seen is not None else None)
        return leading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as a server that does not lead: who it is, and who does."""
        if scope["type"] != "http":
            return
        if scope["path"] == f"{PREFIX}/identify":
            asked = parse_qs(scope["query_string"].decode("ascii", "replace"))
            proof = self._proof(asked.get("nonce", [""])[0][:256], next(iter(asked.get("token", ())), None))
            spoken = asked.get("protocol", ["1"])[0]
            answer: Any = JSONResponse(identity(proof, int(spoken) if spoken.isdecimal() else 1))
        else:
            seat = self._leader
            answer = error_response(
                not_leader(seat.url if seat is not None and seat.holder != self._me else None)
            )
        await answer(scope, receive, send)


@contextlib.contextmanager
def answering(
    standby: Standby, doors: Doors, section: ServerSection, serving: Callable[[], None]
) -> Iterator[None]:
    """Answer at the doors meanwhile; afterwards they are still open, and who comes then waits for the leader.

    ``serving`` is called once answers are given. SIGTERM and SIGINT end the wait; called on the main thread.
    """
    served = doors.copies()
    server = Beside(
        uvicorn.Config(
            standby, log_config=None, access_log=False, timeout_graceful_shutdown=1, lifespan="off"
        )
    )

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(serve(server, served, section))

    thread = threading.Thread(target=run, name="standby-http", daemon=True)
    previous = {
        number: signal.signal(number, lambda *_: standby.stop()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    thread.start()
    serving()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(timeout=5)
        for number, handler in previous.items():
            signal.signal(number, handler)
