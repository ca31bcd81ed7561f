"""Lines from records: cutting, merging, filters, and cursors that lose and double nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from airyard.app.log_lines import MAX_LINE_BYTES
from airyard.app.log_reading import (
    HOLD_BACK_NS,
    OPEN_LINE_NS,
    LogEntry,
    LogHole,
    LogLine,
    LogReader,
    log_ends,
)
from airyard.core.errors import UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import Gap, LogRecord, LogStream
from airyard.core.run import LogClose
from airyard.ports.log_store import LogEnd

OUT, ERR = LogStream.STDOUT, LogStream.STDERR
A, B = MemberKey(1, 0, 0), MemberKey(1, 0, 1)
SECOND = 1_000_000_000


class Records:
    """A log store of lists; seeks as far back as the real one may."""

    def __init__(self) -> None:
        self.logs: dict[MemberKey, list[LogRecord]] = {}

    def say(self, key: MemberKey, payload: bytes, time_ns: int = 0, stream: LogStream = OUT) -> None:
        log = self.logs.setdefault(key, [])
        seq = log[-1].next_seq if log else 0
        log.append(LogRecord(stream=stream, seq=seq, time_ns=time_ns, payload=payload))

    def lose(self, key: MemberKey, count: int, time_ns: int = 0) -> None:
        log = self.logs.setdefault(key, [])
        first = log[-1].next_seq if log else 0
        gap = Gap(
            first_seq=first, last_seq=first + count - 1, payload_bytes=count * 10, reason="the spool was full"
        )
        log.append(gap.record(time_ns))

    def append(self, key: MemberKey, frames: bytes) -> int:
        raise NotImplementedError

    def end(self, key: MemberKey) -> LogEnd:
        log = self.logs.get(key, [])
        return LogEnd(next_seq=log[-1].next_seq if log else 0, bytes=0, sha256="abc")

    def read(self, key: MemberKey, from_seq: int = 0, limit_bytes: int = 1 << 20) -> list[LogRecord]:
        return [record for record in self.logs.get(key, []) if record.seq >= from_seq][:3]

    def seek_time(self, key: MemberKey, time_ns: int) -> int:
        older = [record.seq for record in self.logs.get(key, []) if record.time_ns < time_ns]
        return max(0, len(older) - 2)

    def seek_tail(self, key: MemberKey, lines: int) -> int:
        seq = found = 0
        for record in reversed(self.logs.get(key, [])):
            seq = record.seq
            found += record.payload.count(b"\n")
            if found >= lines + 3:
                break
        return seq if found >= lines + 3 else 0

    def delete_run(self, run_id: int) -> int:
        raise NotImplementedError

    def runs(self) -> object:
        raise NotImplementedError


class Search:
    """The search of the reader under test, in this process."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def found(self, texts: Sequence[str]) -> list[bool]:
        return [self._pattern.search(text) is not None for text in texts]

    def close(self) -> None:
        pass


def reader(
    store: Records, keys: Sequence[MemberKey] = (A,), offsets: Sequence[int] = (), **options: object
) -> LogReader:
    return LogReader(store, keys, offsets, **options)  # type: ignore[arg-type]  # the fake has fewer types


def texts(entries: Sequence[LogEntry]) -> list[str]:
    return [
        entry.text if isinstance(entry, LogLine) else f"gap {entry.first_seq}-{entry.last_seq}"
        for entry in entries
    ]


def test_lines_are_cut_at_line_ends_only() -> None:
    store = Records()
    for payload in (b"one\ntw", b"o\n\nth", b"ree"):
        store.say(A, payload)
    entries = reader(store).page(100)
    assert texts(entries) == ["one", "two", "", "three"]
    assert [entry.partial for entry in entries if isinstance(entry, LogLine)] == [False, False, False, True]


def test_streams_do_not_mix_within_a_line() -> None:
    store = Records()
    store.say(A, b"out ")
    store.say(A, b"err\n", stream=ERR)
    store.say(A, b"put\n")
    entries = reader(store).page(100)
    assert texts(entries) == ["err", "out put"]
    assert [entry.stream for entry in entries if isinstance(entry, LogLine)] == [ERR, OUT]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b" 10%\r 50%\r100%\n", "100%"),
        (b"windows\r\n", "windows"),
        (b"\r\n", ""),
        (b"bad \xff byte\n", "bad � byte"),
        ("Grüße\n".encode(), "Grüße"),
    ],
)
def test_what_a_terminal_would_leave(payload: bytes, text: str) -> None:
    store = Records()
    store.say(A, payload)
    assert texts(reader(store).page(9)) == [text]


def test_an_over_long_line_is_cut_between_characters_and_loses_nothing() -> None:
    text = "x" + "ü" * 100_000 + " end"
    data = text.encode() + b"\n"
    store = Records()
    for start in range(0, len(data), 50_001):
        store.say(A, data[start : start + 50_001])
    entries = [entry for entry in reader(store).page(100) if isinstance(entry, LogLine)]
    assert "".join(entry.text for entry in entries) == text
    assert [entry.partial for entry in entries] == [True, True, True, False]
    assert max(len(entry.text.encode()) for entry in entries) <= MAX_LINE_BYTES


def test_a_line_of_exactly_the_limit_is_whole() -> None:
    store = Records()
    store.say(A, b"x" * MAX_LINE_BYTES)
    store.say(A, b"\nnext\n")
    entries = reader(store).page(10)
    assert [len(text) for text in texts(entries)] == [MAX_LINE_BYTES, 4]


def test_members_are_merged_in_corrected_time() -> None:
    store = Records()
    for number in range(4):
        store.say(A, f"a{number}\n".encode(), time_ns=1000 + number * 10)
        store.say(B, f"b{number}\n".encode(), time_ns=91_005 + number * 10)
    entries = reader(store, (A, B), (0, -90_000)).page(100)
    assert texts(entries) == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert [entry.time_ns for entry in entries] == [1000, 1005, 1010, 1015, 1020, 1025, 1030, 1035]


def test_a_gap_is_shown_as_a_gap_and_cuts_lines() -> None:
    store = Records()
    store.say(A, b"one\nhalf", time_ns=5)
    store.lose(A, 7)
    store.say(A, b" rest\nthree\n", time_ns=9)
    entries = reader(store).page(100)
    assert texts(entries) == ["one", "half", "gap 1-7", " rest", "three"]
    assert isinstance(entries[2], LogHole)
    assert (entries[2].bytes, entries[2].reason, entries[2].time_ns) == (70, "the spool was full", 5)


def test_following_holds_an_open_line_for_a_second() -> None:
    store = Records()
    store.say(A, b"prompt> ", time_ns=SECOND)
    follow = reader(store)
    assert follow.page(9, now_ns=SECOND + OPEN_LINE_NS - 1) == []
    first = follow.page(9, now_ns=SECOND + OPEN_LINE_NS)
    assert texts(first) == ["prompt> "]
    store.say(A, b"yes\n", time_ns=3 * SECOND)
    assert texts(follow.page(9, now_ns=3 * SECOND)) == ["yes"]
    store.say(A, b"50%", time_ns=4 * SECOND)
    assert texts(follow.page(9, now_ns=6 * SECOND)) == ["50%"]
    store.say(A, b"\n", time_ns=7 * SECOND)
    (end,) = follow.page(9, now_ns=7 * SECOND)
    assert isinstance(end, LogLine)
    assert (end.text, end.partial) == ("", False), "who was shown its beginning hears that it has ended"
    store.say(A, b"last words", time_ns=8 * SECOND)
    assert texts(follow.page(9, now_ns=8 * SECOND, ended={A})) == ["last words"]


def test_following_waits_for_slow_members_but_not_long() -> None:
    store = Records()
    store.say(A, b"a\n", time_ns=SECOND)
    follow = reader(store, (A, B))
    assert follow.page(9, now_ns=SECOND + 1) == []
    assert texts(follow.page(9, now_ns=SECOND + 1, ended={B})) == ["a"]
    store.say(A, b"late\n", time_ns=2 * SECOND)
    store.say(B, b"early\n", time_ns=2 * SECOND - 5)
    assert texts(follow.page(9, now_ns=2 * SECOND)) == ["early"]
    store.say(B, b"next\n", time_ns=2 * SECOND + 7)
    assert texts(follow.page(9, now_ns=2 * SECOND + 9)) == ["late"]
    assert texts(follow.page(9, now_ns=2 * SECOND + 7 + HOLD_BACK_NS)) == ["next"]


def test_tail_since_and_pattern() -> None:
    store = Records()
    for number in range(50):
        store.say(A, f"line {number}\n".encode(), time_ns=number * 10)
        store.say(B, f"other {number}\n".encode(), time_ns=number * 10 + 5)
    assert texts(reader(store, (A, B)).tail(3)) == ["other 48", "line 49", "other 49"]
    assert texts(reader(store, (A,), search=Search("[38]$")).tail(3)) == ["line 38", "line 43", "line 48"]
    assert texts(reader(store, (A, B), since_ns=481).page(100)) == ["other 48", "line 49", "other 49"]
    assert texts(reader(store, (A,), (-200,), since_ns=285).page(100)) == ["line 49"]
    assert reader(store).tail(0) == []


def test_a_tail_goes_on_into_following() -> None:
    store = Records()
    for number in range(30):
        store.say(A, f"{number}\n".encode(), time_ns=number)
    follow = reader(store)
    assert texts(follow.tail(2, now_ns=SECOND)) == ["28", "29"]
    store.say(A, b"30\n", time_ns=31)
    assert texts(follow.page(10, now_ns=SECOND)) == ["30"]


@pytest.mark.parametrize("cursor", ["", "x", "1;2", "-1", "1,9.0.0", "1,0.0", "1,0.-2.0"])
def test_bad_cursors_are_refused(cursor: str) -> None:
    with pytest.raises(UserError) as refused:
        reader(Records(), cursor=cursor)
    assert refused.value.code == "BAD_CURSOR"


def random_yard(dice: random.Random) -> Records:
    store = Records()
    for key in (A, B):
        for number in range(40):
            if dice.random() < 0.05:
                store.lose(key, dice.randrange(1, 5), time_ns=number * 10)
                continue
            words = [
                dice.choice((b"\n", b"word", b"\r", "ü".encode(), b"\n\n")) for _ in range(dice.randrange(6))
            ]
            store.say(key, b"".join(words), number * 10 + dice.randrange(9), dice.choice((OUT, OUT, ERR)))
    return store


@pytest.mark.parametrize("seed", range(40))
def test_going_on_from_any_entry_loses_and_doubles_nothing(seed: int) -> None:
    dice = random.Random(seed)
    store = random_yard(dice)
    search = dice.choice((None, None, Search("w")))

    def plain(entries: Sequence[LogEntry]) -> list[tuple[object, ...]]:
        return [
            (entry.key, entry.time_ns, texts([entry])[0], getattr(entry, "stream", None)) for entry in entries
        ]

    whole = reader(store, (A, B), search=search).page(10_000)
    for at in range(0, len(whole), 3):
        again = reader(store, (A, B), search=search, cursor=whole[at].cursor).page(10_000)
        assert plain(again) == plain(whole[at + 1 :])
    read = reader(store, (A, B), search=search)
    found: list[LogEntry] = []
    while page := read.page(dice.randrange(1, 7)):
        found += page
        read = reader(store, (A, B), search=search, cursor=read.cursor)
    assert plain(found) == plain(whole)


@pytest.mark.parametrize("seed", range(20))
def test_following_shows_everything_once_through_reconnections(seed: int) -> None:
    dice = random.Random(seed)
    full, growing = random_yard(dice), Records()
    expected = {
        (key, stream): b"".join(record.payload for record in full.logs[key] if record.stream is stream)
        for key in (A, B)
        for stream in (OUT, ERR)
    }
    follow, found, now_ns = reader(growing, (A, B)), list[LogEntry](), 0
    rest = {key: list(full.logs[key]) for key in (A, B)}
    while any(rest.values()):
        key = dice.choice([key for key in (A, B) if rest[key]])
        growing.logs.setdefault(key, []).append(rest[key].pop(0))
        now_ns += dice.choice((1, 100, HOLD_BACK_NS, 2 * OPEN_LINE_NS))
        page = follow.page(dice.randrange(1, 5), now_ns=now_ns)
        found += page
        if dice.random() < 0.4:
            follow = reader(growing, (A, B), cursor=page[-1].cursor if page else follow.cursor)
    while page := follow.page(50, now_ns=now_ns, ended={A, B}):
        found += page

    def bare(text: str) -> str:
        return text.replace("\n", "").replace("\r", "")

    for (key, stream), data in expected.items():
        if b"\r" in data:
            continue  # of a progress bar only the last state is shown
        lines = [
            entry
            for entry in found
            if isinstance(entry, LogLine) and (entry.key, entry.stream) == (key, stream)
        ]
        assert "".join(line.text for line in lines).replace("�", "") == bare(data.decode())
    holes = [entry for entry in found if isinstance(entry, LogHole)]
    assert len(holes) == sum(record.stream is LogStream.GAP for log in full.logs.values() for record in log)


def test_the_end_of_a_log_is_compared_with_what_was_announced() -> None:
    store = Records()
    store.say(A, b"x\n")
    store.say(A, b"y\n")
    cases: list[tuple[LogClose | None, bool, int]] = [
        (LogClose(last_seq=1, sha256="abc"), True, 0),
        (LogClose(last_seq=1, sha256=""), True, 0),
        (LogClose(last_seq=1, sha256="def"), False, 0),
        (LogClose(last_seq=4, sha256="abc"), False, 3),
        (LogClose(last_seq=0, sha256="abc"), False, 0),
        (None, False, 0),
    ]
    for close, complete, missing in cases:
        (end,) = log_ends(store, {A: close})  # type: ignore[arg-type]  # the fake has fewer types
        assert (end.complete, end.missing, end.last_seq) == (complete, missing, 1)
        assert bool(end.reason) is not complete
    (nothing,) = log_ends(store, {B: LogClose(last_seq=-1, sha256="")})  # type: ignore[arg-type]  # as above
    assert nothing.complete
