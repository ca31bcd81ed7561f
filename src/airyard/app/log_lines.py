"""One member's records cut into lines, and where reading may go on without loss or doubling.

Owns: lines per stream, their limits, a member's place in its log. Must not know: other members, filters, clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airyard.core.errors import UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import Gap, LogRecord, LogStream

MAX_LINE_BYTES = 64 * 1024
_NEWLINE = ord("\n")
TEXT_STREAMS = (LogStream.STDOUT, LogStream.STDERR, LogStream.AIRYARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line for display. ``partial``: its end is not here; it goes on in the next one of its stream, if it can.

    ``time_ns`` is that of the record that ended it, corrected. ``cursor`` reads on behind this line.
    """

    key: MemberKey
    stream: LogStream
    time_ns: int
    text: str
    partial: bool = False
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHole:
    """Records that are gone."""

    key: MemberKey
    time_ns: int
    first_seq: int
    last_seq: int
    bytes: int
    reason: str
    cursor: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A byte of a log: record, byte in its payload; ``continued``: the text before it was shown as a partial line."""

    seq: int = 0
    byte: int = 0
    continued: bool = False

    def text(self, stream: LogStream) -> str:
        """Return ``0.118.40``: stream, record, byte; with a ``c`` when in mid-line."""
        return f"{stream.value}.{self.seq}.{self.byte}{'c' if self.continued else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is ready to be shown, and where its stream goes on after it. ``gap`` has no text."""

    stream: LogStream
    time_ns: int
    data: bytes
    partial: bool
    after: Spot
    gap: Gap | None = None


@dataclass(slots=True)
class _Held:
    """The beginning of a line whose end has not come."""

    data: bytearray = field(default_factory=bytearray)
    since_ns: int = 0
    last_ns: int = 0
    after: Spot = Spot()
    continued: bool = False


class LineCutter:
    """Turns records, in order, into pieces; holds what has no end yet."""

    def __init__(self, place: Place) -> None:
        self._spots = dict(place.streams)
        self._frontier = place.next_seq
        self._held = {stream: _Held(continued=spot.continued) for stream, spot in self._spots.items()}
        self.read_from = min([place.next_seq, *(spot.seq for spot in self._spots.values())])
        self.last_ns = 0

    def feed(self, record: LogRecord) -> Iterator[Piece]:
        """Yield what one record completes."""
        self.last_ns = max(self.last_ns, record.time_ns)
        self.read_from = record.next_seq
        if record.stream is LogStream.GAP:
            yield from self.flush()  # what is lost may have been the end of any line
            if self._start_in(record) is not None:
                yield Piece(
                    stream=LogStream.GAP,
                    time_ns=self.last_ns,
                    data=b"",
                    partial=False,
                    after=Spot(record.next_seq),
                    gap=Gap.decode(record.payload),
                )
            return
        start = self._start_in(record)
        if start is not None:
            yield from self._cut(record, start)

    def _start_in(self, record: LogRecord) -> int | None:
        """Return the first byte of the record that was not shown before, or None when all of it was."""
        spot = self._spots.get(record.stream)
        if spot is None:
            return 0 if record.seq >= self._frontier else None
        if record.seq < spot.seq:
            return None
        return spot.byte if record.seq == spot.seq else 0

    def _cut(self, record: LogRecord, start: int) -> Iterator[Piece]:
        held = self._held.setdefault(record.stream, _Held())
        payload = record.payload
        while start < len(payload):
            if len(held.data) >= MAX_LINE_BYTES and payload[start] != _NEWLINE:
                yield self._over_long(record.stream, held)
            newline = payload.find(b"\n", start)
            end = len(payload) if newline < 0 else newline
            room = MAX_LINE_BYTES - len(held.data)
            whole = newline >= 0 and end - start <= room
            if not whole:
                end = min(end, start + room)
            if not held.data:
                held.since_ns = self.last_ns
            held.data += payload[start:end]
            held.last_ns = self.last_ns
            start = end + whole
            held.after = Spot(record.seq, start)
            if whole:
                # Also when nothing is left of it: who was shown its beginning must hear that it has ended.
                yield self._piece(record.stream, held, partial=False)

    def _over_long(self, stream: LogStream, held: _Held) -> Piece:
        """Cut a line at its limit, between two characters: what belongs to the next one stays held."""
        kept = _split_character(held.data)
        end = held.after
        if kept > end.byte:
            kept = 0  # the character began in an earlier record
        held.after = Spot(end.seq, end.byte - kept)
        rest = held.data[len(held.data) - kept :]
        del held.data[len(held.data) - kept :]
        piece = self._piece(stream, held, partial=True)
        held.data[:] = rest
        held.after = end
        return piece

    def _piece(self, stream: LogStream, held: _Held, *, partial: bool) -> Piece:
        after = Spot(held.after.seq, held.after.byte, partial)
        piece = Piece(
            stream=stream,
            time_ns=held.last_ns,
            data=bytes(held.data),
            partial=partial,
            after=after,
        )
        held.data.clear()
        held.continued = partial
        return piece

    def flush(self, before_ns: int | None = None) -> Iterator[Piece]:
        """Yield lines without an end, all or those that began before a time."""
        for stream in TEXT_STREAMS:
            held = self._held.get(stream)
            if held is not None and held.data and (before_ns is None or held.since_ns <= before_ns):
                yield self._piece(stream, held, partial=True)

    @property
    def frontier(self) -> int:
        """The first record that no reading, this one or those before it, has seen."""
        return max(self.read_from, self._frontier)

    def seen(self, stream: LogStream) -> Spot:
        """The first byte of a stream that neither this reading nor those before it have come to."""
        return Spot(self.read_from if stream in self._spots else self.frontier)

    def holds(self, stream: LogStream) -> bool:
        """Whether a line of the stream has begun and not ended."""
        held = self._held.get(stream)
        return held is not None and (bool(held.data) or held.continued)


@dataclass(slots=True, kw_only=True)
class Place:
    """Where the reading of one member goes on: ``next_seq`` for all streams but those named."""

    next_seq: int = 0
    streams: dict[LogStream, Spot] = field(default_factory=dict)

    def text(self) -> str:
        """Return ``120`` or ``120,0.118.40,1.119.0c``: a stream, its record, its byte, ``c`` when in mid-line."""
        parts = (spot.text(stream) for stream, spot in self.streams.items())
        return ",".join((str(self.next_seq), *parts))

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``text``'s form. Raises: UserError."""
        try:
            first, *rest = text.split(",")
            streams: dict[LogStream, Spot] = {}
            for part in rest:
                stream, seq, byte = part.removesuffix("c").split(".")
                streams[LogStream(int(stream))] = Spot(_natural(seq), _natural(byte), part.endswith("c"))
            return cls(next_seq=_natural(first), streams=streams)
        except ValueError as error:
            raise UserError(
                f"{text!r} is no place in a log.",
                code="BAD_CURSOR",
                fix="Use a cursor as an earlier answer gave it, or none to read from the start.",
            ) from error


def shown(data: bytes) -> str:
    """Return a line as a terminal would leave it: of a progress bar the last state, odd bytes as U+FFFD."""
    if b"\r" in data:
        states = [state for state in data.split(b"\r") if state]
        data = states[-1] if states else b""
    return data.decode("utf-8", "replace")


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _split_character(data: bytearray) -> int:
    """Return how many bytes at the end are the beginning of a character whose end is not there."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return back if length > back else 0
    return 0
