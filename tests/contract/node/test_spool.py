"""The spool on a real disk: numbering, batches, gaps, what a crash leaves, a disk that is full."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.core.log_frames import MAX_PAYLOAD_BYTES, Gap, LogRecord, LogStream, iter_frames
from airyard.node.spool import MEMORY_LIMIT_BYTES, LogSpool

OUT, ERR = LogStream.STDOUT, LogStream.STDERR


class Server:
    """Takes frames by the server's rule: below the next is dropped, else it must start at it."""

    def __init__(self) -> None:
        self.next_seq = 0
        self.records: list[LogRecord] = []
        self.hash = hashlib.sha256()

    def take(self, frames: bytes) -> bool:
        records, used = iter_frames(frames)
        assert used == len(frames)
        position = 0
        for record in records:
            size = 26 + len(record.payload)
            if record.seq >= self.next_seq:
                if record.first_seq != self.next_seq:
                    return False
                self.hash.update(frames[position : position + size])
                self.records.append(record)
                self.next_seq = record.next_seq
            position += size
        return True

    def drain(self, spool: LogSpool, max_bytes: int = 256 * 1024) -> None:
        while frames := spool.batch(max_bytes):
            if self.take(frames):
                spool.acknowledge(self.next_seq)
            else:
                spool.resync(self.next_seq)

    def covers(self) -> bool:
        """Whether records and gaps follow each other without a hole or an overlap."""
        expected = 0
        for record in self.records:
            if record.first_seq != expected:
                return False
            expected = record.next_seq
        return expected == self.next_seq

    @property
    def gaps(self) -> list[Gap]:
        return [Gap.decode(record.payload) for record in self.records if record.stream is LogStream.GAP]

    @property
    def payload_bytes(self) -> int:
        return sum(len(record.payload) for record in self.records if record.stream is not LogStream.GAP)


def test_records_come_out_as_they_went_in(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path), Server()
    assert spool.batch() == b""
    assert spool.append(OUT, b"one", 1) == 0
    assert spool.append(ERR, b"two", 2) == 1
    assert spool.append(LogStream.AIRYARD, b"", 3) == 1
    assert not spool.is_drained
    server.drain(spool)
    assert [(r.stream, r.seq, r.time_ns, r.payload) for r in server.records] == [
        (OUT, 0, 1, b"one"),
        (ERR, 1, 2, b"two"),
    ]
    assert spool.is_drained
    assert spool.pending_bytes == 0
    assert spool.digest() == server.hash.hexdigest()


def test_large_reads_are_split_and_segments_go_away(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=256 * 1024), Server()
    data = random.Random(1).randbytes(3 * 1024 * 1024 + 17)
    assert spool.append(OUT, data, 5) == len(data) // MAX_PAYLOAD_BYTES
    assert len(list(tmp_path.iterdir())) > 10
    server.drain(spool)
    assert b"".join(r.payload for r in server.records) == data
    assert len(list(tmp_path.iterdir())) == 1
    assert spool.digest() == server.hash.hexdigest()


def test_batch_repeats_until_acknowledged_and_takes_partial_acknowledgement(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path), Server()
    for number in range(10):
        spool.append(OUT, b"%d" % number, number)
    first = spool.batch(100)
    assert iter_frames(first)[0][0].seq == 0
    assert len(first) <= 100
    assert spool.batch(10_000) == first
    server.take(iter_first(first, 2))
    spool.acknowledge(2)
    assert spool.acknowledged_seq == 2
    spool.acknowledge(1)
    assert iter_frames(spool.batch(100))[0][0].seq == 2
    server.drain(spool)
    assert [r.seq for r in server.records] == list(range(10))
    assert spool.digest() == server.hash.hexdigest()


def iter_first(frames: bytes, count: int) -> bytes:
    return frames[: sum(26 + len(r.payload) for r in iter_frames(frames)[0][:count])]


def test_oldest_records_become_one_gap_with_exact_bytes(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, limit_bytes=1024 * 1024, segment_bytes=128 * 1024), Server()
    for number in range(4000):
        spool.append(OUT, b"x" * 1000, number)
    assert spool.pending_bytes <= 1024 * 1024
    server.drain(spool)
    assert server.covers()
    assert server.next_seq == 4000
    (gap,) = server.gaps
    assert gap.first_seq == 0
    assert gap.payload_bytes == 1000 * (gap.last_seq + 1)
    assert server.payload_bytes + gap.payload_bytes == 4_000_000
    assert "1048576 bytes" in gap.reason
    assert spool.digest() == server.hash.hexdigest()


def test_batch_on_its_way_survives_the_limit(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, limit_bytes=512 * 1024, segment_bytes=128 * 1024), Server()
    for number in range(200):
        spool.append(OUT, b"x" * 1000, number)
    on_its_way = spool.batch(50_000)
    for number in range(200, 3000):
        spool.append(OUT, b"y" * 1000, number)
    assert spool.batch(50_000) == on_its_way
    server.drain(spool)
    assert server.covers()
    (gap,) = server.gaps
    assert gap.first_seq == len(iter_frames(on_its_way)[0])
    assert server.payload_bytes + gap.payload_bytes == 3_000_000
    assert spool.digest() == server.hash.hexdigest()


def test_random_orders_of_appending_sending_and_reopening(tmp_path: Path) -> None:
    for seed in range(60):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        limits = {"limit_bytes": 600_000, "segment_bytes": 100_000}
        spool, server = LogSpool(folder, **limits), Server()
        sent = 0
        for step in range(600):
            match dice.randrange(8):
                case 0 | 1 | 2 | 3 | 4:
                    data = b"z" * dice.choice((1, 100, 5000, 70_000))
                    sent += len(data)
                    spool.append(dice.randrange(3), data, step)
                case 5:
                    frames = spool.batch(dice.choice((1, 10_000, 300_000)))
                    if dice.random() < 0.7 and server.take(frames):
                        spool.acknowledge(server.next_seq)
                case 6:
                    spool.acknowledge(server.next_seq)
                case _ if dice.random() < 0.05:
                    spool.close()
                    spool = LogSpool(folder, **limits)
        server.drain(spool)
        assert server.covers(), seed
        assert server.next_seq == spool.next_seq
        assert spool.digest() in (None, server.hash.hexdigest())
        if spool.digest() is not None:
            assert server.payload_bytes + sum(gap.payload_bytes for gap in server.gaps) == sent
        spool.close()


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from airyard.node.spool import LogSpool
spool = LogSpool(Path(sys.argv[1]), segment_bytes=100_000)
for number in range(1000):
    spool.append(0, b"%06d" % number * 50, number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_reopening_after_a_kill_loses_nothing_and_cuts_a_torn_frame(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(tmp_path)], check=False)
    last = max(tmp_path.iterdir())
    with last.open("ab") as file:
        file.write(b"\xa1\x00\xff\x00\x00torn")
    spool, server = LogSpool(tmp_path), Server()
    assert spool.append(OUT, b"after", 7) == 1000
    server.drain(spool)
    assert server.covers()
    assert server.gaps == []
    assert [r.payload[:6] for r in server.records] == [b"%06d" % n for n in range(1000)] + [b"after"]
    assert spool.digest() == server.hash.hexdigest()


def test_damage_inside_an_old_file_becomes_a_gap(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=100_000), Server()
    for number in range(1000):
        spool.append(OUT, b"x" * 500, number)
    spool.close()
    damaged = sorted(tmp_path.iterdir())[1]
    with damaged.open("r+b") as file:
        file.seek(50_000)
        file.write(b"????")
    spool = LogSpool(tmp_path)
    server.drain(spool)
    assert server.covers()
    assert len(server.gaps) == 1
    assert server.next_seq == 1000


def test_next_number_survives_when_everything_was_sent(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=100_000), Server()
    for number in range(1000):
        spool.append(OUT, b"x" * 500, number)
    server.drain(spool)
    spool.close()
    again = LogSpool(tmp_path)
    assert again.next_seq == 1000
    assert again.append(OUT, b"more", 1) == 1000
    server.drain(again)
    assert server.covers()
    assert again.digest() is None


def test_lost_folder_goes_on_behind_what_the_server_has(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path)
    spool.acknowledge(42)
    assert spool.is_drained
    assert spool.append(OUT, b"more", 1) == 42
    spool.close()
    assert LogSpool(tmp_path).next_seq == 43


def test_server_that_expects_lost_records_gets_a_gap(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=100_000), Server()
    for number in range(1000):
        spool.append(OUT, b"x" * 500, number)
    spool.close()
    sorted(tmp_path.iterdir())[0].unlink()
    spool = LogSpool(tmp_path)
    server.drain(spool)
    assert server.covers()
    assert server.gaps[0].first_seq == 0
    assert server.next_seq == 1000


def test_records_that_the_disk_does_not_give_back_become_a_gap(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=100_000), Server()
    for number in range(1000):
        spool.append(OUT, b"x" * 500, number)
    files = sorted(tmp_path.iterdir())
    os.truncate(files[0], 50_000)
    with files[2].open("r+b") as file:
        file.write(b"????")
    os.truncate(files[-1], 0)
    server.drain(spool)
    spool.append(OUT, b"after", 1)
    server.drain(spool)
    assert server.covers()
    assert server.next_seq == 1001
    assert len(server.gaps) == 3
    assert server.payload_bytes + sum(gap.payload_bytes for gap in server.gaps) == 500_005
    assert spool.digest() == server.hash.hexdigest()


def test_one_thread_writes_while_another_sends(tmp_path: Path) -> None:
    spool, server = LogSpool(tmp_path, segment_bytes=256 * 1024), Server()

    def write() -> None:
        for number in range(5000):
            spool.append(OUT, b"%05d" % number * 100, number)

    writer = threading.Thread(target=write)
    writer.start()
    while server.next_seq < 5000:
        assert spool.wait(10.0)
        server.drain(spool)
    writer.join()
    assert server.covers()
    assert server.gaps == []
    assert spool.digest() == server.hash.hexdigest()
    assert not spool.wait(0.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip("this machine does not allow mounting: " + made.stderr.decode())
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_neither_raises_nor_loses_the_newest(small_disk: Path) -> None:
    spool, server = LogSpool(small_disk, min_free_fraction=0, segment_bytes=256 * 1024), Server()
    (small_disk / "foreign").write_bytes(b"x" * 1024 * 1024)
    for number in range(8000):
        spool.append(OUT, b"%04d" % number * 250, number)
    server.drain(spool)
    assert server.covers()
    (gap,) = server.gaps
    assert "took no more" in gap.reason
    assert server.payload_bytes + gap.payload_bytes == 8_000_000
    assert server.payload_bytes > 250_000
    assert spool.digest() == server.hash.hexdigest()


def test_disk_that_takes_nothing_leaves_a_bounded_log_in_memory(small_disk: Path) -> None:
    spool, server = LogSpool(small_disk, min_free_fraction=0, segment_bytes=256 * 1024), Server()
    with pytest.raises(OSError, match="No space"):
        (small_disk / "foreign").write_bytes(b"x" * 4 * 1024 * 1024)
    for number in range(20_000):
        spool.append(OUT, b"x" * 1000, number)
    assert spool.pending_bytes <= MEMORY_LIMIT_BYTES + 2 * 1024 * 1024
    (small_disk / "foreign").unlink()
    for number in range(2000):
        spool.append(OUT, b"y" * 1000, number)
    assert any(path.stat().st_size for path in small_disk.iterdir())
    server.drain(spool)
    assert server.covers()
    assert server.next_seq == 22_000
    assert len(server.gaps) == 1


def test_part_of_the_disk_stays_free(small_disk: Path) -> None:
    spool, server = LogSpool(small_disk, min_free_fraction=0.5, segment_bytes=128 * 1024), Server()
    for number in range(4000):
        spool.append(OUT, b"x" * 1000, number)
    disk = os.statvfs(small_disk)
    assert disk.f_bavail >= 0.4 * disk.f_blocks - 16
    server.drain(spool)
    assert server.covers()
    assert "nearly full" in server.gaps[0].reason
