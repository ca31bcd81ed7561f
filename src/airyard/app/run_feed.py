"""The story of one run as a sequence of objects: status, log lines, alerts, retries, the end.

Owns: the order of these objects, the cursor by which a reader goes on, when a log is waited for no longer.
Must not know: HTTP, asyncio, clocks (time comes as an argument), who reads. Blocks on the stores.

A reader calls ``step`` whenever something may have happened. Every object carries a cursor; a feed that is made with
it goes on right after that object, in another process too: nothing is lost, nothing comes twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airyard.app.log_lines import LogHole, LogLine
from airyard.app.log_reading import LogEntry, LogReader
from airyard.app.run_lookup import run_from
from airyard.app.views import Document, Lights, exit_code, rfc3339, run_document
from airyard.core.errors import NotFound, UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, MemberPhase, Run, RunState
from airyard.ports.log_store import LogStore
from airyard.ports.read_store import ReadStore

LOGS_WAIT_MS = 10_000
"""How long an ended attempt's log is waited for."""
PAGE_ENTRIES = 2000
ALERTS_OF_A_KIND = 10
START_MOVED_MS = 60_000
_STREAM_NAMES = {stream: stream.name.lower() for stream in LogStream}
AlertOf = Callable[[str], str | None]
"""A log line -> the kind of alert that it is, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What there is to say now.

    ``more``: ask again at once. ``live_members``: whose lines may wait for others'. ``due``: time alone may bring
    news: a reason to wait is looked at again, the end of a log is waited for.
    """

    objects: list[Document]
    done: bool
    more: bool
    live_members: int
    due: bool = False


@dataclass(slots=True, kw_only=True)
class FeedPosition:
    """How far a reader is: the version of the last STATUS, the attempt whose log is read, the place in that log.

    ``holes``: how many logs that were left open it has been told of, behind the last line of the attempt.
    """

    version: int = -1
    attempt: int = 0
    log: str | None = None
    holes: int = 0

    def text(self) -> str:
        """Return the cursor."""
        return f"{self.version}:{self.attempt}:{'!' * self.holes}{self.log or ''}"

    @classmethod
    def parse(cls, text: str) -> FeedPosition:
        """Read a cursor. Raises: UserError."""
        version, _, rest = text.partition(":")
        attempt, sign, log = rest.partition(":")
        if not (sign and attempt.isascii() and attempt.isdigit() and version.lstrip("-").isdigit()):
            raise UserError(
                f"{text!r} is no cursor of a stream",
                code="BAD_CURSOR",
                fix="use the cursor of the last object that came, or none to begin at the start",
            )
        place = log.lstrip("!")
        return cls(version=int(version), attempt=int(attempt), log=place or None, holes=len(log) - len(place))


class RunFeed:
    """One reader's way through one run. Not for two threads at once."""

    def __init__(
        self,
        *,
        reads: ReadStore,
        logs: LogStore,
        offsets_ns: Mapping[MemberKey, int],
        run: Run,
        cursor: str | None = None,
        with_logs: bool = True,
        alert_of: AlertOf = lambda line: None,
    ) -> None:
        """Begin at ``cursor``, or at the start. Raises: UserError for a cursor that is none."""
        self._reads = reads
        self._logs = logs
        self._offsets_ns = offsets_ns
        self._alert_of = alert_of
        self._with_logs = with_logs
        self._at = FeedPosition.parse(cursor) if cursor else FeedPosition()
        self._reader: LogReader | None = None
        self._reader_offsets_ns: list[int] = []
        self._shown: tuple[Any, ...] | None = None
        self._start_ms: int | None = None
        """The expected start that was shown last."""
        self._document: Document | None = None
        self._alerts: Counter[tuple[MemberKey, str]] = Counter()
        self.run = run
        if self._at.log is not None and self._at.attempt < len(run.attempts):
            # Made to judge the cursor now, while the answer has not begun.
            LogReader(logs, _keys(run.attempts[self._at.attempt]), cursor=self._at.log)

    def step(self, now_ms: int, lights: Lights) -> Step:
        """Return everything that has come up. Raises: NotFound when the run has been removed."""
        row = self._reads.run(self.run.run_id)
        if row is None:
            raise NotFound(f"run {self.run.run_id} has been removed", code="RUN_NOT_FOUND")
        if row.version != self.run.version:
            self.run, self._document = run_from(row), None
        document = self._document or run_document(self.run, lights)
        eta = lights.etas.get(self.run.run_id)
        # Beside its record, only a waiting or preparing run has something to tell.
        self._document = None if document["status"] in ("QUEUED", "PREPARING") else document
        objects: list[Document] = []
        while True:
            attempt = self._attempt()
            if not self._is_past(attempt):
                objects += self._status(document, eta.p50_ms if eta is not None else None, now_ms)
            if attempt is None:
                done = self.run.state is RunState.ENDED
                return self._ended(objects, document) if done else _step(objects, attempt, due=True)
            over = _is_over(attempt, now_ms) if self._with_logs else not attempt.live
            full = self._with_logs and self._lines(attempt, now_ms, over, objects)
            if full or not over:
                return _step(objects, attempt, more=full, due=not attempt.running_ms or not attempt.live)
            if self._with_logs:
                for hole in open_holes(self._logs, attempt, _keys(attempt))[self._at.holes :]:
                    self._at.holes += 1
                    objects.append({**hole, "cursor": self._at.text()})
            if attempt.number + 1 == len(self.run.attempts) and self.run.state is RunState.ENDED:
                return self._ended(objects, document)
            self._at.attempt += 1
            self._at.log, self._at.holes, self._reader = None, 0, None
            objects.append(self._retry(attempt))

    def _attempt(self) -> Attempt | None:
        attempts = self.run.attempts
        return attempts[self._at.attempt] if self._at.attempt < len(attempts) else None

    def _is_past(self, attempt: Attempt | None) -> bool:
        """Return whether the run has gone on from the attempt: its log and RETRY come before news of the next."""
        if attempt is None or attempt.live:
            return False
        return attempt.number + 1 < len(self.run.attempts) or self.run.state is not RunState.ENDED

    def _status(self, document: Document, start_ms: int | None, now_ms: int) -> Iterator[Document]:
        """Yield a STATUS when there is news: a new version, another reason to wait, another phase or start."""
        pending = document["pending"]
        phases = tuple(phase["name"] for phase in document["phases"])
        key = (self.run.version, pending and (pending["reason"], pending["message"]), phases)
        known = self._shown is None and self.run.version <= self._at.version
        moved = start_ms is not None and _moved(self._start_ms, start_ms, now_ms)
        if (key == self._shown and not moved) or known:
            self._shown = key
            return
        self._shown, self._start_ms = key, start_ms
        self._at.version = max(self._at.version, self.run.version)
        yield self._object("STATUS", run=document)

    def _lines(self, attempt: Attempt, now_ms: int, over: bool, objects: list[Document]) -> bool:
        """Add the next lines of the attempt's log; return whether there may be more at once."""
        keys = _keys(attempt)
        offsets_ns = [self._offsets_ns.get(key, 0) for key in keys]
        if self._reader is None or offsets_ns != self._reader_offsets_ns:
            # A node's clock is measured by its first messages; from then on its lines are placed by it.
            self._reader = LogReader(self._logs, keys, offsets_ns, cursor=self._at.log)
            self._reader_offsets_ns = offsets_ns
        ended = [
            key
            for key, member in zip(keys, attempt.members, strict=True)
            if over or member.logs is not None or member.logs_given_up
        ]
        entries = self._reader.page(PAGE_ENTRIES, now_ns=now_ms * 1_000_000, ended=frozenset(ended))
        for entry in entries:
            self._at.log = entry.cursor
            objects.append({**log_object(entry), "cursor": self._at.text()})
            if isinstance(entry, LogLine) and (kind := self._alert(entry)) is not None:
                where = {"attempt": attempt.number, "node": entry.key.member}
                objects.append(self._object("ALERT", **where, line=entry.text, kind=kind))
        return len(entries) >= PAGE_ENTRIES

    def _alert(self, line: LogLine) -> str | None:
        """Return the kind of a line of the user's own output; each kind only a few times a member."""
        if line.stream is LogStream.AIRYARD:
            return None
        kind = self._alert_of(line.text)
        if kind is None or self._alerts[line.key, kind] >= ALERTS_OF_A_KIND:
            return None
        self._alerts[line.key, kind] += 1
        return kind

    def _retry(self, attempt: Attempt) -> Document:
        failure, run = attempt.failure, self.run
        waits = run.state is RunState.QUEUED and run.not_before_ms > (attempt.ended_ms or 0)
        return self._object(
            "RETRY",
            attempt=attempt.number,
            cause=attempt.cause.value if attempt.cause else None,
            message=failure.message if failure else "",
            next_attempt_at=rfc3339(run.not_before_ms) if waits else None,
        )

    def _ended(self, objects: list[Document], document: Document) -> Step:
        objects.append(self._object("TERMINAL", run=document, exit_code=exit_code(self.run)))
        return Step(objects=objects, done=True, more=False, live_members=0)

    def _object(self, type_: str, **fields: Any) -> Document:
        return {"type": type_, "cursor": self._at.text(), **fields}


def log_object(entry: LogEntry) -> Document:
    """Return the LOG or GAP object of an entry, without a cursor."""
    where = {"attempt": entry.key.attempt, "node": entry.key.member}
    if isinstance(entry, LogHole):
        return {
            "type": "GAP",
            **where,
            "first_seq": entry.first_seq,
            "last_seq": entry.last_seq,
            "bytes": entry.bytes,
            "reason": entry.reason,
        }
    out: Document = {
        "type": "LOG",
        **where,
        "stream": _STREAM_NAMES[entry.stream],
        "time_ns": entry.time_ns,
        "line": entry.text,
    }
    if entry.partial:
        out["partial"] = True
    return out


def open_holes(logs: LogStore, attempt: Attempt, keys: Sequence[MemberKey]) -> list[Document]:
    """Return a GAP object without an end for each log that a lost member left open: nobody knows how much is missing.

    Without a cursor. Cost: a hash over a log that this process has not hashed yet.
    """
    holes: list[Document] = []
    for key in keys:
        member = attempt.members[key.member]
        if member.logs is not None or member.phase is not MemberPhase.LOST:
            continue
        machine = member.machine
        holes.append(
            {
                "type": "GAP",
                "attempt": key.attempt,
                "node": key.member,
                "first_seq": logs.end(key).next_seq,
                "last_seq": None,
                "bytes": None,
                "reason": f"machine {machine} was lost with what it had not sent"
                if member.logs_given_up
                else f"machine {machine} has not sent the rest yet",
            }
        )
    return holes


def _moved(shown_ms: int | None, start_ms: int, now_ms: int) -> bool:
    """Return whether another expected start is worth telling: by a minute, and by a fifth of the wait."""
    if shown_ms is None:
        return True
    return abs(start_ms - shown_ms) >= max(START_MOVED_MS, abs(start_ms - now_ms) // 5)


def _keys(attempt: Attempt) -> list[MemberKey]:
    return [attempt.member_key(member.index) for member in attempt.members]


def _is_over(attempt: Attempt, now_ms: int) -> bool:
    """Return whether nothing more of the attempt's log is waited for."""
    if attempt.live or attempt.ended_ms is None:
        return False
    return attempt.logs_closed or now_ms - attempt.ended_ms >= LOGS_WAIT_MS


def _step(objects: list[Document], attempt: Attempt | None, *, due: bool, more: bool = False) -> Step:
    members = attempt.members if attempt is not None else ()
    live = sum(member.logs is None and not member.logs_given_up for member in members)
    return Step(objects=objects, done=False, more=more, live_members=live, due=due)
