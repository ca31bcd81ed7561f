"""Reads the logs of an attempt's members as lines, in one order, and goes on where an earlier reading ended.

Owns: merging in corrected time, filters, cursors, what may be held back how long, the summary at the end.
Must not know: HTTP, clocks (time comes as an argument), who follows.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from airyard.app.log_lines import TEXT_STREAMS, LineCutter, LogHole, LogLine, Piece, Place, Spot, shown
from airyard.core.errors import UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogStream
from airyard.core.run import LogClose
from airyard.ports.line_search import LineSearch
from airyard.ports.log_store import LogStore

LogEntry = LogLine | LogHole

HOLD_BACK_NS = 250_000_000
"""How long a line may wait for an older one of another member."""
OPEN_LINE_NS = 1_000_000_000
"""How long a line may wait for its end."""
_READ_BYTES = 256 * 1024
_PAGE_ENTRIES = 1000
_FOREVER_NS = 1 << 63


@dataclass(slots=True, kw_only=True)
class _Member:
    """The reading of one member's log."""

    index: int
    key: MemberKey
    offset_ns: int
    cutter: LineCutter
    spots: dict[LogStream, Spot]
    queue: deque[tuple[Piece, str]] = field(default_factory=deque)
    queued: dict[LogStream, int] = field(default_factory=lambda: dict.fromkeys(LogStream, 0))
    dry: bool = False
    reads: int = 0
    place_text: str = ""
    _others_text: str = ""
    _noted: LogStream | None = None
    _noted_reads: int = -1

    @classmethod
    def at(cls, index: int, key: MemberKey, offset_ns: int, place: Place) -> _Member:
        start = Spot(place.next_seq)
        member = cls(
            index=index,
            key=key,
            offset_ns=offset_ns,
            cutter=LineCutter(place),
            spots={stream: place.streams.get(stream, start) for stream in LogStream},
        )
        member.place_text = place.text()
        return member

    def note_place(self, shown: LogStream | None = None) -> None:
        """Work out where a later reading goes on: behind what was shown, before what was only read.

        With ``shown``, a stream of which a piece was just shown: what holds for the others is worked out only when it
        can have changed, because this happens for every line.
        """
        if shown is None or shown is not self._noted or self._noted_reads != self.reads:
            place = Place(next_seq=self.cutter.frontier)
            for stream in LogStream:
                if stream is shown:
                    continue
                if not self.queued[stream] and not (stream in TEXT_STREAMS and self.cutter.holds(stream)):
                    self.spots[stream] = max(self.spots[stream], self.cutter.seen(stream))
                if self.spots[stream] != Spot(place.next_seq):
                    place.streams[stream] = self.spots[stream]
            self.place_text = self._others_text = place.text()
            self._noted, self._noted_reads = shown, self.reads
        if shown is not None:
            self.place_text = f"{self._others_text},{self.spots[shown].text(shown)}"

    @property
    def head_ns(self) -> int:
        return self.queue[0][0].time_ns + self.offset_ns


class LogReader:
    """Entries of several members, oldest first. Not for two threads at once.

    ``offsets_ns`` are added to each member's own clock. ``search`` keeps the lines in which it finds something;
    holes are always shown. ``cursor`` (of an entry, or of an earlier reader of the same members) says where to go on.
    Raises: UserError (``BAD_CURSOR``; while reading, what ``search`` raises).
    """

    def __init__(
        self,
        store: LogStore,
        keys: Sequence[MemberKey],
        offsets_ns: Sequence[int] = (),
        *,
        cursor: str | None = None,
        since_ns: int | None = None,
        search: LineSearch | None = None,
    ) -> None:
        self._store = store
        self._since_ns = since_ns
        self._search = search
        offsets = tuple(offsets_ns) or (0,) * len(keys)
        places = _places(cursor, len(keys))
        if cursor is None and since_ns is not None:
            starts = [
                store.seek_time(key, since_ns - offset) for key, offset in zip(keys, offsets, strict=True)
            ]
            places = [Place(next_seq=seq) for seq in starts]
        self._members = [
            _Member.at(index, key, offset, place)
            for index, (key, offset, place) in enumerate(zip(keys, offsets, places, strict=True))
        ]
        self._from_start = cursor is None and since_ns is None

    @property
    def cursor(self) -> str:
        """Where a later reader goes on after the entries that were returned."""
        for member in self._members:
            member.note_place()
        return self._cursor_text()

    def _cursor_text(self) -> str:
        return ";".join(member.place_text for member in self._members)

    def tail(
        self, lines: int, *, now_ns: int | None = None, ended: Collection[MemberKey] = ()
    ) -> list[LogEntry]:
        """Return the last entries there are, and go on behind them; only before any ``page``.

        Cost: reads about ``lines`` lines a member; with a search, the whole log.
        """
        if self._from_start and self._search is None:
            self._members = [
                _Member.at(
                    member.index,
                    member.key,
                    member.offset_ns,
                    Place(next_seq=self._store.seek_tail(member.key, lines)),
                )
                for member in self._members
            ]
        last: deque[LogEntry] = deque(maxlen=lines)
        while page := self.page(_PAGE_ENTRIES, now_ns=now_ns, ended=ended):
            last.extend(page)
        return list(last)

    def page(
        self, limit: int, *, now_ns: int | None = None, ended: Collection[MemberKey] = ()
    ) -> list[LogEntry]:
        """Return the next entries, fewer than ``limit`` when that is all for now.

        Without ``now_ns`` all that is stored is read, open lines included. With it (to follow) an entry waits for
        older ones of members not ``ended``, ``HOLD_BACK_NS`` at most, and an open line for its end, ``OPEN_LINE_NS``.
        """
        out: list[LogEntry] = []
        heap: list[tuple[int, int]] = []
        quiet_ns = _FOREVER_NS  # no quiet member will show anything older than this

        def refill(member: _Member) -> None:
            nonlocal quiet_ns
            self._fill(member, now_ns, ended)
            if member.queue:
                heapq.heappush(heap, (member.head_ns, member.index))
            elif member.key not in ended:
                quiet_ns = min(quiet_ns, member.cutter.last_ns + member.offset_ns)

        for member in self._members:
            member.dry = False
            refill(member)
        while heap and len(out) < limit:
            time_ns, index = heap[0]
            if now_ns is not None and time_ns > quiet_ns and now_ns - time_ns < HOLD_BACK_NS:
                break
            heapq.heappop(heap)
            member = self._members[index]
            out.append(self._shown(member))
            refill(member)
        return out

    def _fill(self, member: _Member, now_ns: int | None, ended: Collection[MemberKey]) -> None:
        """Have something in the member's queue, unless its log has nothing more to show for now."""
        while not member.queue and not member.dry:
            records = self._store.read(member.key, member.cutter.read_from, _READ_BYTES)
            member.reads += 1
            pieces = [piece for record in records for piece in member.cutter.feed(record)]
            if not records:
                member.dry = True
                before_ns = None
                if now_ns is not None and member.key not in ended:
                    before_ns = now_ns - member.offset_ns - OPEN_LINE_NS
                pieces.extend(member.cutter.flush(before_ns))
            self._enqueue(member, pieces)

    def _enqueue(self, member: _Member, pieces: Sequence[Piece]) -> None:
        texts = ["" if piece.gap is not None else shown(piece.data) for piece in pieces]
        found = self._search.found(texts) if self._search is not None else None
        for at, piece in enumerate(pieces):
            if piece.gap is None and not (
                self._is_recent(piece.time_ns + member.offset_ns) and (found is None or found[at])
            ):
                if not member.queued[piece.stream]:
                    member.spots[piece.stream] = piece.after
                continue
            member.queued[piece.stream] += 1
            member.queue.append((piece, texts[at]))

    def _is_recent(self, time_ns: int) -> bool:
        return self._since_ns is None or time_ns >= self._since_ns

    def _shown(self, member: _Member) -> LogEntry:
        piece, text = member.queue.popleft()
        member.queued[piece.stream] -= 1
        member.spots[piece.stream] = piece.after
        member.note_place(piece.stream)
        time_ns = piece.time_ns + member.offset_ns
        cursor = self._cursor_text()
        if piece.gap is not None:
            return LogHole(
                key=member.key,
                time_ns=time_ns,
                first_seq=piece.gap.first_seq,
                last_seq=piece.gap.last_seq,
                bytes=piece.gap.payload_bytes,
                reason=piece.gap.reason,
                cursor=cursor,
            )
        return LogLine(
            key=member.key,
            stream=piece.stream,
            time_ns=time_ns,
            text=text,
            partial=piece.partial,
            cursor=cursor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLogEnd:
    """How a member's log ended. ``missing`` records were announced and have not come; ``reason`` says what is wrong."""

    key: MemberKey
    complete: bool
    last_seq: int
    missing: int
    reason: str = ""


def log_ends(store: LogStore, closes: Mapping[MemberKey, LogClose | None]) -> tuple[MemberLogEnd, ...]:
    """Compare what is stored with what each runner announced; None: it never announced an end.

    Cost: a hash over a log that this process has not hashed yet.
    """
    return tuple(_log_end(store, key, close) for key, close in closes.items())


def _log_end(store: LogStore, key: MemberKey, close: LogClose | None) -> MemberLogEnd:
    end = store.end(key)
    last_seq = end.next_seq - 1
    reason = ""
    missing = 0
    if close is None:
        reason = "the runner never said where the log ends"
    elif last_seq < close.last_seq:
        missing = close.last_seq - last_seq
        reason = f"{missing} records have not arrived"
    elif last_seq > close.last_seq:
        reason = f"there are records after the announced end {close.last_seq}"
    elif close.sha256 and close.sha256 != end.sha256:
        reason = "the stored records are not the ones that were sent: their hash differs"
    return MemberLogEnd(key=key, complete=not reason, last_seq=last_seq, missing=missing, reason=reason)


def _places(cursor: str | None, count: int) -> list[Place]:
    if cursor is None:
        return [Place() for _ in range(count)]
    places = [Place.parse(text) for text in cursor.split(";")]
    if len(places) != count:
        raise UserError(
            f"The cursor is for {len(places)} members; {count} were asked for.",
            code="BAD_CURSOR",
            fix="Use a cursor with the same run, attempt and nodes as the answer that gave it.",
        )
    return places
