"""The log of one attempt: as lines with filters, or the octets of one member.

Owns: the wire side, and which attempt and members are meant. Must not know: frames, the merging of members.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from airyard.adapters.line_search import ProcessLineSearch
from airyard.app.log_reading import LogReader, log_ends
from airyard.app.run_feed import LOGS_WAIT_MS, log_object, open_holes
from airyard.app.run_lookup import run_from
from airyard.core.errors import NotFound, UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, Run, RunState
from airyard.ports.line_search import LineSearch
from airyard.ports.log_store import LogStore
from airyard.server.context import ServerContext
from airyard.server.ndjson import Block, follow, ndjson, streaming
from airyard.server.requests import PREFIX, Caller, Context, Ref, run_of
from airyard.server.wakeups import Wakeups

router = APIRouter(prefix=PREFIX, tags=["runs"])
LATEST = -1
MAX_TAIL = 1_000_000
_PAGE_ENTRIES = 2000
_TEXT = (LogStream.STDOUT, LogStream.STDERR)
AttemptNumber = Annotated[int, Query(ge=LATEST, description="-1: the latest")]


@router.get("/runs/{ref}/logs", response_class=StreamingResponse)
async def run_logs(
    context: Context,
    caller: Caller,
    ref: Ref,
    attempt: AttemptNumber = LATEST,
    node: Annotated[int | None, Query(ge=0)] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_TAIL)] = None,
    since_ms: Annotated[int | None, Query(ge=0, lt=1 << 53)] = None,
    grep: Annotated[str | None, Query(max_length=1000)] = None,
    follow_: Annotated[bool, Query(alias="follow")] = False,
) -> StreamingResponse:
    """Return log lines in corrected time order over the nodes: NDJSON of LOG and GAP, then END.

    With ``follow`` until the attempt has ended and its log is complete. An expression that takes too long is refused,
    or ends an answer that has begun: END says so, and that it is not complete.
    """
    run = await run_of(context, caller, ref)
    search = None if grep is None else await run_in_threadpool(ProcessLineSearch, grep)
    wanted = _Wanted(node=node, tail=tail, since_ms=since_ms, search=search, follow=follow_)
    if run.attempts or attempt != LATEST or not follow_:
        chosen = _attempt(run, attempt)
        reading = await run_in_threadpool(_Reading, context, run, chosen, wanted)
    else:
        # Nothing to read yet: the first attempt is waited for.
        reading = _Reading(context, run, None, wanted)

    async def look() -> Block:
        return await run_in_threadpool(reading.look)

    if search is not None:
        try:
            await run_in_threadpool(reading.look_ahead)
        except UserError:
            search.close()
            raise
    return streaming(_closing(follow(Wakeups(context.changes, [run.run_id]), look), search))


async def _closing(blocks: AsyncGenerator[bytes, None], search: LineSearch | None) -> AsyncIterator[bytes]:
    try:
        async with aclosing(blocks):
            async for block in blocks:
                yield block
    finally:
        if search is not None:
            search.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    node: int | None
    tail: int | None
    since_ms: int | None
    search: LineSearch | None
    follow: bool


def _attempt(run: Run, number: int) -> Attempt | None:
    if number == LATEST:
        return run.attempt
    if number >= len(run.attempts):
        raise NotFound(
            f"run {run.run_id} has no attempt {number}; it has {len(run.attempts)}", code="NO_ATTEMPT"
        )
    return run.attempts[number]


def _members(run: Run, attempt: Attempt, node: int | None) -> tuple[MemberKey, ...]:
    if node is not None and node >= len(attempt.members):
        there = "node 0 only" if len(attempt.members) == 1 else f"the nodes 0 to {len(attempt.members) - 1}"
        raise NotFound(
            f"attempt {attempt.number} of run {run.run_id} has {there}; there is no node {node}",
            code="NO_NODE",
        )
    return tuple(
        attempt.member_key(member.index) for member in attempt.members if node in (None, member.index)
    )


@dataclass(slots=True)
class _Reading:
    """One reader of one attempt's log. Blocks; not for two threads at once."""

    context: ServerContext
    run: Run
    attempt: Attempt | None
    wanted: _Wanted
    keys: tuple[MemberKey, ...] = ()
    reader: LogReader | None = None
    tailed: bool = field(default=False)
    ahead: Block | None = None

    def __post_init__(self) -> None:
        if self.attempt is None:
            return
        self.keys = _members(self.run, self.attempt, self.wanted.node)
        since_ms = self.wanted.since_ms
        self.reader = LogReader(
            self.context.logs,
            self.keys,
            [self.context.clock_offsets_ns.get(key, 0) for key in self.keys],
            since_ns=None if since_ms is None else since_ms * 1_000_000,
            search=self.wanted.search,
        )

    def look_ahead(self) -> None:
        """Make the first look now. Raises: UserError of the search."""
        if self.reader is not None and self.attempt is not None:
            self.ahead = self._next_block(self.reader, self.attempt)

    def look(self) -> Block:
        """Return the lines that have come, and END when there is nothing more to wait for."""
        self._refresh()
        if self.reader is None or self.attempt is None:
            if self.wanted.follow and self.run.state is not RunState.ENDED:
                return Block(data=b"")
            end: dict[str, Any] = {"type": "END", "attempt": None, "complete": True, "members": []}
            return Block(data=ndjson([end]), done=True)
        if self.ahead is not None:
            block, self.ahead = self.ahead, None
            return block
        try:
            return self._next_block(self.reader, self.attempt)
        except UserError as error:  # of the search
            end = self._end(self.attempt)
            for member in end["members"]:
                member.update(complete=False, reason=error.message)
            return Block(data=ndjson([{**end, "complete": False}]), done=True)

    def _next_block(self, reader: LogReader, attempt: Attempt) -> Block:
        over = self._over(attempt)
        ended = self._ended(attempt, over)
        now_ns = self.context.clock.now_ms() * 1_000_000 if self.wanted.follow else None
        if self.wanted.tail is not None and not self.tailed:
            self.tailed = True
            entries = reader.tail(self.wanted.tail, now_ns=now_ns, ended=ended)
            return Block(data=ndjson(map(log_object, entries)), more=True)
        entries = reader.page(_PAGE_ENTRIES, now_ns=now_ns, ended=ended)
        objects = list(map(log_object, entries))
        if len(entries) >= _PAGE_ENTRIES:
            return Block(data=ndjson(objects), more=True)
        if over or not self.wanted.follow:
            holes = [] if attempt.live else open_holes(self.context.logs, attempt, self.keys)
            return Block(data=ndjson([*objects, *holes, self._end(attempt)]), done=True)
        return Block(data=ndjson(objects), held=len(self.keys) - len(ended) > 1, due=not attempt.live)

    def _refresh(self) -> None:
        row = self.context.reads.run(self.run.run_id)
        if row is None or row.version == self.run.version:
            return
        self.run = run_from(row)
        if self.attempt is not None:
            self.attempt = self.run.attempts[self.attempt.number]
        elif self.run.attempts:
            self.attempt = self.run.attempts[0]
            self.__post_init__()

    def _over(self, attempt: Attempt) -> bool:
        if attempt.live or attempt.ended_ms is None:
            return False
        waited = self.context.clock.now_ms() - attempt.ended_ms >= LOGS_WAIT_MS
        return waited or len(self._ended(attempt, False)) == len(self.keys)

    def _ended(self, attempt: Attempt, over: bool) -> frozenset[MemberKey]:
        closed = (
            key
            for key in self.keys
            if over
            or attempt.members[key.member].logs is not None
            or attempt.members[key.member].logs_given_up
        )
        return frozenset(closed)

    def _end(self, attempt: Attempt) -> dict[str, Any]:
        ends = log_ends(self.context.logs, {key: attempt.members[key.member].logs for key in self.keys})
        members = [
            {
                "node": end.key.member,
                "complete": end.complete,
                "last_seq": end.last_seq,
                "missing": end.missing,
                "reason": end.reason,
            }
            for end in ends
        ]
        complete = all(end.complete for end in ends)
        return {"type": "END", "attempt": attempt.number, "complete": complete, "members": members}


@router.get("/runs/{ref}/logs/raw", response_class=StreamingResponse)
async def raw_log(
    context: Context,
    caller: Caller,
    ref: Ref,
    attempt: AttemptNumber = LATEST,
    node: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """Return what one member printed, stdout and stderr in the order in which it came, octet by octet."""
    run = await run_of(context, caller, ref)
    chosen = _attempt(run, attempt)
    if chosen is None:
        raise NotFound(f"run {run.run_id} has no attempt yet, and so no log", code="NO_ATTEMPT")
    (key,) = _members(run, chosen, node)
    return StreamingResponse(
        _octets(context.logs, key),
        media_type="application/octet-stream",
        headers={"x-content-type-options": "nosniff"},
    )


def _octets(logs: LogStore, key: MemberKey) -> Iterator[bytes]:
    seq = 0
    while records := logs.read(key, seq):
        part = b"".join(record.payload for record in records if record.stream in _TEXT)
        if part:
            yield part
        seq = records[-1].next_seq
