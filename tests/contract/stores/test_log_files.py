"""The log store on a real disk: order, repetition, gaps, crashes, searching, full disks, speed of opening."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.adapters.log_files import FileLogStore
from airyard.adapters.log_index import STEP_BYTES
from airyard.core.errors import Conflict, Unavailable, UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import Gap, LogRecord, LogStream, encode, iter_frames
from airyard.node.spool import LogSpool

KEY = MemberKey(3, 0, 1)
OUT = LogStream.STDOUT


def record(seq: int, payload: bytes = b"line\n", time_ns: int | None = None) -> LogRecord:
    return LogRecord(stream=OUT, seq=seq, time_ns=seq * 1000 if time_ns is None else time_ns, payload=payload)


def frames(*records: LogRecord) -> bytes:
    return b"".join(map(encode, records))


def log_path(folder: Path) -> Path:
    return folder / "3" / "0" / "1.log"


def read_all(store: FileLogStore, key: MemberKey = KEY, limit_bytes: int = 1 << 20) -> list[LogRecord]:
    found: list[LogRecord] = []
    while page := store.read(key, found[-1].next_seq if found else 0, limit_bytes):
        found += page
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileLogStore]:
    store = FileLogStore(tmp_path / "logs")
    yield store
    store.close()


def test_records_come_back_and_the_hash_is_of_the_frames(store: FileLogStore) -> None:
    assert store.end(KEY).next_seq == 0
    assert store.end(KEY).sha256 == hashlib.sha256().hexdigest()
    assert store.read(KEY) == []
    first, second = frames(record(0), record(1, b"two")), frames(record(2, b""))
    assert store.append(KEY, first) == 2
    assert store.append(KEY, second) == 3
    assert read_all(store) == [record(0), record(1, b"two"), record(2, b"")]
    end = store.end(KEY)
    assert (end.next_seq, end.bytes, end.sha256) == (3, 8, hashlib.sha256(first + second).hexdigest())
    assert store.read(KEY, 1, 1) == [record(1, b"two")]
    assert store.read(KEY, 3) == []


def test_repeated_records_are_dropped_and_later_ones_refused(store: FileLogStore) -> None:
    store.append(KEY, frames(record(0), record(1)))
    assert store.append(KEY, frames(record(0), record(1))) == 2
    assert store.append(KEY, frames(record(1, b"other"), record(2), record(1), record(3))) == 4
    assert read_all(store) == [record(0), record(1), record(2), record(3)]
    with pytest.raises(Conflict) as refused:
        store.append(KEY, frames(record(6)))
    assert (refused.value.code, refused.value.details["next"]) == ("LOG_GAP", 4)
    with pytest.raises(UserError) as hole:
        store.append(KEY, frames(record(4), record(6)))
    assert hole.value.code == "LOG_BATCH_HOLE"
    assert store.end(KEY).next_seq == 4


def test_a_gap_is_taken_where_it_touches_what_is_expected(store: FileLogStore) -> None:
    store.append(KEY, frames(record(0), record(1)))
    gap = Gap(first_seq=1, last_seq=8, payload_bytes=70, reason="the spool was full").record(9)
    early = Gap(first_seq=3, last_seq=8, payload_bytes=70, reason="x").record(9)
    with pytest.raises(Conflict, match="goes on with record 2"):
        store.append(KEY, frames(early))
    assert store.append(KEY, frames(gap, record(9))) == 10
    assert read_all(store) == [record(0), record(1), gap, record(9)]
    assert store.read(KEY, 5)[0] == gap
    assert store.end(KEY).bytes == 15


@pytest.mark.parametrize("damage", ["cut", "flipped", "noise"])
def test_damaged_batches_are_refused_whole(store: FileLogStore, damage: str) -> None:
    good = frames(record(0), record(1))
    bad = {"cut": good[:-1], "flipped": good[:-1] + b"X", "noise": good + b"noise" * 20}[damage]
    with pytest.raises(UserError) as refused:
        store.append(KEY, bad)
    assert refused.value.code == "DAMAGED_LOG_FRAME"
    assert store.append(KEY, good) == 2


def filled(folder: Path, count: int = 4000, chance: int = 5) -> list[LogRecord]:
    """Write a log of about 1 MB with an index, of lines that cross records."""
    dice = random.Random(chance)
    records = [
        LogRecord(
            stream=LogStream(dice.choice((0, 0, 0, 1))),
            seq=seq,
            time_ns=seq * 1000 + dice.randrange(500),
            payload=dice.randbytes(dice.randrange(200)).replace(b"\n", b" ") + b"\n" * dice.randrange(3),
        )
        for seq in range(count)
    ]
    store = FileLogStore(folder)
    for start in range(0, count, 97):
        store.append(KEY, frames(*records[start : start + 97]))
    store.close()
    return records


@pytest.mark.parametrize(
    "damage", ["none", "torn log", "no index", "torn index", "foreign index", "short log"]
)
def test_a_reopened_log_goes_on_where_its_good_frames_end(tmp_path: Path, damage: str) -> None:
    records = filled(tmp_path)
    path = log_path(tmp_path)
    index = path.with_suffix(".idx")
    assert index.stat().st_size > 0
    good = len(records)
    if damage == "torn log":
        with path.open("ab") as file:
            file.write(frames(record(good, b"x" * 100))[:50])
    if damage == "no index":
        index.unlink()
    if damage == "torn index":
        index.write_bytes(index.read_bytes()[:-7])
    if damage == "foreign index":
        data = bytearray(path.read_bytes())
        entries = index.read_bytes()
        index.write_bytes(entries + entries[:44])
        path.write_bytes(data)
    if damage == "short log":
        os.truncate(path, STEP_BYTES // 2)
        good = iter_frames(path.read_bytes())[0][-1].next_seq
    store = FileLogStore(tmp_path)
    assert store.next_seq(KEY) == good
    assert read_all(store, limit_bytes=10_000) == records[:good]
    assert store.append(KEY, frames(record(good, b"more\n"))) == good + 1
    assert store.end(KEY).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert store.read(KEY, good - 1) == [records[good - 1], record(good, b"more\n")]
    store.close()


def test_left_over_frames_of_a_failed_write_are_cut(tmp_path: Path) -> None:
    filled(tmp_path, 300)
    with log_path(tmp_path).open("ab") as file:
        file.write(frames(record(200), record(201)))
    store = FileLogStore(tmp_path)
    assert store.next_seq(KEY) == 300
    assert store.append(KEY, frames(record(300))) == 301
    assert [one.seq for one in store.read(KEY, 298)] == [298, 299, 300]
    store.close()


def test_what_the_disk_spoiled_is_read_as_a_gap(tmp_path: Path) -> None:
    records = filled(tmp_path, 12_000)
    path = log_path(tmp_path)
    data = bytearray(path.read_bytes())
    for place in (10_000, len(data) // 2):
        data[place] ^= 0xFF
    path.write_bytes(data)
    store = FileLogStore(tmp_path)
    assert store.next_seq(KEY) == 12_000
    found = read_all(store, limit_bytes=50_000)
    gaps = [one for one in found if one.stream is LogStream.GAP]
    assert len(gaps) == 2
    assert [one for one in found if one.stream is not LogStream.GAP] == [
        one for one in records if not any(gap.first_seq <= one.seq <= gap.seq for gap in gaps)
    ]
    assert sum(gap.seq - gap.first_seq + 1 for gap in gaps) < 12_000 * 0.6
    middle = (gaps[0].first_seq + gaps[0].seq) // 2
    again = store.read(KEY, middle, 10)
    assert (again[0].stream, again[0].first_seq, again[0].seq) == (LogStream.GAP, middle, gaps[0].seq)
    store.close()


def test_searching_by_time_and_by_lines(tmp_path: Path) -> None:
    records = filled(tmp_path, 12_000)
    store = FileLogStore(tmp_path)
    for time_ns in (0, 1, 3_000_000, 7_500_250, 11_999_999, 99_000_000):
        first = next((one.seq for one in records if one.time_ns >= time_ns), len(records))
        sought = store.seek_time(KEY, time_ns)
        assert sought <= first
        assert first - sought < 5500, "not from the start"
    for lines in (0, 1, 10, 500, 5000, 10**9):
        start = store.seek_tail(KEY, lines)
        there = sum(one.payload.count(b"\n") for one in records[start:])
        assert there >= min(lines, sum(one.payload.count(b"\n") for one in records))
        assert there <= lines + 8000 or lines == 10**9
    assert store.seek_tail(KEY, 1) > 8000
    assert store.seek_tail(MemberKey(9, 9, 9), 5) == 0
    assert store.seek_time(MemberKey(9, 9, 9), 5) == 0
    store.close()


def test_few_files_stay_open_and_runs_are_removed(tmp_path: Path) -> None:
    store = FileLogStore(tmp_path, open_files=4)
    before = len(os.listdir("/proc/self/fd"))
    for run_id in range(1, 31):
        assert store.append(MemberKey(run_id, 0, 0), frames(record(0))) == 1
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    for run_id in range(1, 31):
        assert store.append(MemberKey(run_id, 0, 0), frames(record(1))) == 2
    size = len(frames(record(0), record(1)))
    assert next(iter(store.runs())) == (1, size)
    assert [run_id for run_id, _ in store.runs()] == list(range(1, 31))
    assert store.delete_run(30) == size
    assert store.delete_run(30) == 0
    assert store.end(MemberKey(30, 0, 0)).next_seq == 0
    assert store.append(MemberKey(30, 0, 0), frames(record(0))) == 1
    store.close()


def test_writers_and_readers_at_once(tmp_path: Path) -> None:
    store = FileLogStore(tmp_path, open_files=3)
    keys = [MemberKey(1, 0, member) for member in range(6)]
    faults: list[BaseException] = []
    done = threading.Event()

    def write(key: MemberKey) -> None:
        try:
            for seq in range(0, 200, 2):
                store.append(key, frames(record(seq), record(seq + 1)))
        except BaseException as error:
            faults.append(error)

    def read() -> None:
        try:
            while not done.is_set():
                for key in keys:
                    seqs = [one.seq for one in store.read(key)]
                    assert seqs == list(range(len(seqs)))
        except BaseException as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(key,)) for key in keys]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not faults
    assert all(store.end(key).next_seq == 200 for key in keys)
    store.close()


def test_what_a_spool_sends_is_what_the_store_keeps(tmp_path: Path) -> None:
    spool, store = LogSpool(tmp_path / "spool", segment_bytes=128 * 1024), FileLogStore(tmp_path / "logs")
    dice = random.Random(3)
    for number in range(800):
        spool.append(dice.choice((0, 1)), dice.randbytes(dice.randrange(1, 3000)), number)
        if number % 50 == 0 and (batch := spool.batch(20_000)):
            spool.acknowledge(store.append(KEY, batch))
            assert store.append(KEY, batch) == store.next_seq(KEY)
    while batch := spool.batch():
        spool.acknowledge(store.append(KEY, batch))
    end = store.end(KEY)
    assert (end.next_seq, end.sha256) == (spool.next_seq, spool.digest())
    spool.close()
    store.close()


def test_a_full_disk_refuses_and_keeps_what_it_had(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    store = FileLogStore(folder / "logs")
    try:
        expected = 0
        refused: Unavailable | None = None
        for seq in range(100):
            try:
                expected = store.append(KEY, frames(record(seq, b"x" * 20_000)))
            except Unavailable as error:
                refused = error
                break
        assert refused is not None
        assert refused.code == "LOG_DISK_FULL"
        assert store.next_seq(KEY) == expected > 5
        store.close()
        assert store.next_seq(KEY) == expected
        assert store.append(KEY, frames(record(expected, b"small"))) == expected + 1
        assert [one.seq for one in read_all(store)] == list(range(expected + 1))
    finally:
        store.close()
        subprocess.run(["umount", "--lazy", folder], check=True)


WRITER_PROGRAM = """
import random, sys
from pathlib import Path
from airyard.adapters.log_files import FileLogStore
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode

store, key, dice = FileLogStore(Path(sys.argv[1])), MemberKey(3, 0, 1), random.Random(1)
seq = store.next_seq(key)
while True:
    count = dice.randrange(1, 40)
    batch = [
        LogRecord(stream=LogStream.STDOUT, seq=seq + n, time_ns=n, payload=dice.randbytes(dice.randrange(9000)))
        for n in range(count)
    ]
    seq = store.append(key, b"".join(map(encode, batch)))
    print(seq, flush=True)
"""


def test_what_was_acknowledged_outlives_kill_9(tmp_path: Path) -> None:
    dice = random.Random(11)
    for _ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER_PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.1))
        child.kill()
        said = [
            line for line in (first + child.stdout.read()).splitlines(keepends=True) if line.endswith("\n")
        ]
        child.stdout.close()
        child.wait()
        store = FileLogStore(tmp_path)
        assert store.next_seq(KEY) >= int(said[-1])
        assert [one.seq for one in read_all(store)] == list(range(store.next_seq(KEY)))
        assert store.end(KEY).sha256 == hashlib.sha256(log_path(tmp_path).read_bytes()).hexdigest()
        store.close()
