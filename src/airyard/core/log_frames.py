"""The binary form of log records: what the node's spool stores, what the wire carries, what the server keeps.

Owns: record types, the frame layout, encoding and decoding, gap payloads, the limits on sizes.
Must not know: files, sockets, who numbers the records, how they are shown.

A frame is a fixed header of 26 bytes, little-endian, and the payload::

    version u8 | stream u8 | payload length u32 | seq u64 | time_ns i64 | crc32 u32 | payload

The CRC covers the 22 header bytes before it and the payload. A log's hash is the SHA-256 over its frames,
concatenated in the order of their numbers.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from airyard.core.errors import InvariantBroken, UserError

VERSION = 0xA1
MAX_PAYLOAD_BYTES = 64 * 1024
_PREFIX = struct.Struct("<BBIQq")
_CRC = struct.Struct("<I")
HEADER_BYTES = _PREFIX.size + _CRC.size
MAX_FRAME_BYTES = HEADER_BYTES + MAX_PAYLOAD_BYTES
_LAST_STREAM = 3


class LogStream(IntEnum):
    """Where a record came from. One numbering runs through all streams of a member."""

    STDOUT = 0
    STDERR = 1
    AIRYARD = 2
    """Airyard's own notes (preparing, retries, why it stopped)."""
    GAP = 3
    """Records that are gone; the payload says which (``Gap``)."""


class DamagedFrame(UserError, ValueError):
    """Bytes that are no frame; ``offset`` is where it starts, counted from the start of the buffer."""

    default_code = "DAMAGED_LOG_FRAME"

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(
            f"The log frame at byte {offset} is damaged: {reason}.",
            fix="Send the batch again from the last acknowledged record.",
            details={"offset": offset, "reason": reason},
        )
        self.offset = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One read of a member's output. A gap's ``seq`` is the *last* number of the range that it stands for."""

    stream: LogStream
    seq: int
    time_ns: int
    """Node's wall clock, nanoseconds since the Unix epoch."""
    payload: bytes

    @property
    def first_seq(self) -> int:
        """The first number that this record stands for: its own, or the start of a gap's range."""
        return Gap.decode(self.payload).first_seq if self.stream is LogStream.GAP else self.seq

    @property
    def next_seq(self) -> int:
        """The number that must follow."""
        return self.seq + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Which records are gone (both ends included), how many payload bytes they held, and why."""

    first_seq: int
    last_seq: int
    payload_bytes: int
    reason: str

    def encode(self) -> bytes:
        """Return the payload of a gap record: one JSON object with sorted keys."""
        return json.dumps(
            {
                "bytes": self.payload_bytes,
                "first_seq": self.first_seq,
                "last_seq": self.last_seq,
                "reason": self.reason,
            }
        ).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Gap:
        """Read a gap payload. Raises: DamagedFrame (offset 0) when it is none."""
        try:
            found = json.loads(payload)
            gap = cls(
                first_seq=int(found["first_seq"]),
                last_seq=int(found["last_seq"]),
                payload_bytes=int(found["bytes"]),
                reason=str(found["reason"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFrame(0, f"its gap payload cannot be read ({error})") from error
        if not 0 <= gap.first_seq <= gap.last_seq:
            raise DamagedFrame(0, f"its gap runs from {gap.first_seq} to {gap.last_seq}")
        return gap

    def record(self, time_ns: int) -> LogRecord:
        """Return the record that takes the place of the range."""
        return LogRecord(stream=LogStream.GAP, seq=self.last_seq, time_ns=time_ns, payload=self.encode())


def encode_header(stream: int, seq: int, time_ns: int, payload: bytes | memoryview) -> bytes:
    """Return the 26 bytes before ``payload``, so that a writer can send both without copying the payload.

    Raises: InvariantBroken for a payload over 64 KiB. Cost: one CRC pass over the payload.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvariantBroken(
            f"A log record of {len(payload)} bytes was to be encoded; {MAX_PAYLOAD_BYTES} is the limit."
        )
    prefix = _PREFIX.pack(VERSION, stream, len(payload), seq, time_ns)
    return prefix + _CRC.pack(zlib.crc32(payload, zlib.crc32(prefix)))


def encode(record: LogRecord) -> bytes:
    """Return the frame of one record."""
    return encode_header(record.stream, record.seq, record.time_ns, record.payload) + record.payload


def frame_at(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int] | None:
    """Return (end offset, seq) of the frame at ``offset`` by its header; None when it is not all there.

    Raises: DamagedFrame when the header is none. The CRC is not checked: for bytes that the caller wrote.
    """
    if offset + HEADER_BYTES > len(buffer):
        return None
    version, stream, length, seq, _ = _PREFIX.unpack_from(buffer, offset)
    _check_header(offset, version, stream, length)
    end = offset + HEADER_BYTES + length
    return (end, seq) if end <= len(buffer) else None


def iter_frames(buffer: bytes | bytearray | memoryview) -> tuple[list[LogRecord], int]:
    """Decode every whole frame at the buffer's start; return them and the count of bytes they take.

    A frame cut off at the end is left for the next call. Raises: DamagedFrame, naming the offset; frames
    before it can be had by decoding ``buffer[:offset]``.
    """
    records: list[LogRecord] = []
    offset = 0
    for record, end in _decode(memoryview(buffer)):
        records.append(record)
        offset = end
    return records, offset


def holds_output(buffer: bytes | bytearray | memoryview) -> bool:
    """True when one of the whole frames at the buffer's start is user output. Cost: as a rule the first header."""
    offset = 0
    while (found := frame_at(buffer, offset)) is not None:
        if buffer[offset + 1] <= LogStream.STDERR:
            return True
        offset = found[0]
    return False


class Decoder:
    """Decodes a stream of frames that arrives in pieces of any size."""

    __slots__ = ("_consumed", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._consumed = 0

    def feed(self, data: bytes) -> list[LogRecord]:
        """Take more bytes; return the records that became whole.

        Raises: DamagedFrame, with the offset from the start of the whole stream.
        """
        buffer = self._rest + data if self._rest else data
        try:
            records, used = iter_frames(buffer)
        except DamagedFrame as error:
            raise DamagedFrame(self._consumed + error.offset, error.details["reason"]) from error
        self._consumed += used
        self._rest = buffer[used:]
        return records

    def finish(self) -> None:
        """Say that the stream ended. Raises: DamagedFrame when it ended inside a frame."""
        if self._rest:
            raise DamagedFrame(self._consumed, f"it ends after {len(self._rest)} bytes")


def _decode(view: memoryview) -> Iterator[tuple[LogRecord, int]]:
    for stream, seq, time_ns, start, end in spans(view):
        payload = bytes(view[start:end])
        yield LogRecord(stream=LogStream(stream), seq=seq, time_ns=time_ns, payload=payload), end


def spans(view: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (stream, seq, time_ns, payload start, payload end) of each whole frame, checked, without copying.

    The frame itself begins ``HEADER_BYTES`` before its payload. Raises: DamagedFrame, naming the offset.
    """
    offset = 0
    size = len(view)
    while offset + HEADER_BYTES <= size:
        version, stream, length, seq, time_ns = _PREFIX.unpack_from(view, offset)
        _check_header(offset, version, stream, length)
        start = offset + HEADER_BYTES
        end = start + length
        if end > size:
            return
        (expected,) = _CRC.unpack_from(view, offset + _PREFIX.size)
        if zlib.crc32(view[start:end], zlib.crc32(view[offset : offset + _PREFIX.size])) != expected:
            raise DamagedFrame(offset, "its checksum does not match")
        yield stream, seq, time_ns, start, end
        offset = end


def _check_header(offset: int, version: int, stream: int, length: int) -> None:
    if version != VERSION:
        raise DamagedFrame(offset, f"its version byte is {version:#04x}, expected {VERSION:#04x}")
    if stream > _LAST_STREAM:
        raise DamagedFrame(offset, f"its stream is {stream}, expected 0 to {_LAST_STREAM}")
    if length > MAX_PAYLOAD_BYTES:
        raise DamagedFrame(offset, f"its payload is {length} bytes, over the limit of {MAX_PAYLOAD_BYTES}")
