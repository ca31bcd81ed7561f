"""Frames: what is encoded comes back, in pieces of any size, and damage is named with its offset."""

from __future__ import annotations

import pytest

from airyard.core.errors import AiryardError, InvariantBroken
from airyard.core.log_frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    DamagedFrame,
    Decoder,
    Gap,
    LogRecord,
    LogStream,
    encode,
    frame_at,
    holds_output,
    iter_frames,
)


def record(seq: int, payload: bytes, stream: LogStream = LogStream.STDOUT) -> LogRecord:
    return LogRecord(stream=stream, seq=seq, time_ns=1_700_000_000_000_000_000 + seq, payload=payload)


RECORDS = [
    record(0, b"hello\n"),
    record(1, b"", LogStream.STDERR),
    record(2, bytes(range(256)), LogStream.AIRYARD),
    record(3, b"x" * MAX_PAYLOAD_BYTES),
]


def test_header_is_26_bytes_and_records_come_back() -> None:
    frames = b"".join(map(encode, RECORDS))
    assert HEADER_BYTES == 26
    assert iter_frames(frames) == (RECORDS, len(frames))


def test_extreme_numbers_come_back() -> None:
    edge = LogRecord(stream=LogStream.STDOUT, seq=2**64 - 1, time_ns=-(2**63), payload=b"e")
    assert iter_frames(encode(edge))[0] == [edge]


def test_decoder_takes_pieces_cut_anywhere() -> None:
    frames = b"".join(map(encode, RECORDS[:3]))
    for cut in range(len(frames) + 1):
        decoder = Decoder()
        assert decoder.feed(frames[:cut]) + decoder.feed(frames[cut:]) == RECORDS[:3]
        decoder.finish()


def test_decoder_refuses_a_stream_that_ends_inside_a_frame() -> None:
    decoder = Decoder()
    decoder.feed(encode(RECORDS[0])[:-1])
    with pytest.raises(DamagedFrame):
        decoder.finish()


def test_every_flipped_byte_is_noticed() -> None:
    frame = encode(RECORDS[0])
    for position in range(len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 0x40
        try:
            decoded = iter_frames(bytes(damaged))
        except DamagedFrame:
            continue
        # A longer length only makes the frame incomplete; it never decodes.
        assert decoded == ([], 0)


def test_damage_names_its_offset_in_the_whole_stream() -> None:
    first, second = encode(RECORDS[0]), encode(RECORDS[2])
    decoder = Decoder()
    decoder.feed(first)
    with pytest.raises(DamagedFrame) as caught:
        decoder.feed(second[:-1] + b"?")
    assert caught.value.offset == len(first)
    assert isinstance(caught.value, AiryardError)
    assert isinstance(caught.value, ValueError)
    assert str(len(first)) in caught.value.message


def test_frame_at_walks_by_headers() -> None:
    frames = b"".join(map(encode, RECORDS[:3]))
    offset, seen = 0, []
    while (found := frame_at(frames, offset)) is not None:
        offset, seq = found
        seen.append(seq)
    assert seen == [0, 1, 2]
    assert offset == len(frames)


def test_oversized_payload_is_a_bug() -> None:
    with pytest.raises(InvariantBroken):
        encode(record(0, b"x" * (MAX_PAYLOAD_BYTES + 1)))


def test_gap_stands_for_its_range() -> None:
    gap = Gap(first_seq=5, last_seq=9, payload_bytes=1234, reason="the spool was full")
    standing = iter_frames(encode(gap.record(7)))[0][0]
    assert (standing.first_seq, standing.seq, standing.next_seq) == (5, 9, 10)
    assert Gap.decode(standing.payload) == gap


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b'{"first_seq":3,"last_seq":1,"bytes":0,"reason":""}', b"[]"]
)
def test_damaged_gap_payload_is_named(payload: bytes) -> None:
    with pytest.raises(DamagedFrame):
        Gap.decode(payload)


def test_whether_a_batch_holds_output_is_told_by_its_headers() -> None:
    def frame(stream: LogStream, seq: int) -> bytes:
        return encode(LogRecord(stream=stream, seq=seq, time_ns=5, payload=b"words"))

    notes = frame(LogStream.AIRYARD, 1) + frame(LogStream.AIRYARD, 2)
    assert not holds_output(b"")
    assert not holds_output(notes)
    assert holds_output(notes + frame(LogStream.STDERR, 3))
    assert holds_output(frame(LogStream.STDOUT, 1) + notes)
    assert not holds_output(notes + frame(LogStream.STDOUT, 3)[:-1])
