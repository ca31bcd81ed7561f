"""Code snapshots: unpacked once, copied for each attempt, and nothing gets out of the folder."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from airyard.core.errors import InvariantBroken, NotFound
from airyard.node.code_cache import CodeCache, SnapshotRefused, unpack

HASH = "a" * 64


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for info, data in entries:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


PLAIN = archive(
    (entry("src", type=tarfile.DIRTYPE), b""),
    (entry("src/train.py", mode=0o644), b"print('hi')\n"),
    (entry("run.sh", mode=0o4777), b"#!/bin/sh\n"),
    (entry("data", type=tarfile.SYMTYPE, linkname="/mnt/data"), b""),
    (entry("src/latest", type=tarfile.SYMTYPE, linkname="train.py"), b""),
    (entry("copy.py", type=tarfile.LNKTYPE, linkname="src/train.py"), b""),
)


def writes(data: bytes, calls: list[int] | None = None) -> Fetch:
    return Fetch(data, calls if calls is not None else [])


class Fetch:
    def __init__(self, data: bytes, calls: list[int]) -> None:
        self.data = data
        self.calls = calls

    def __call__(self, file: BinaryIO) -> None:
        self.calls.append(threading.get_ident())
        file.write(self.data)


def test_tree_is_fetched_once_and_each_attempt_may_edit_its_own(tmp_path: Path) -> None:
    cache, calls = CodeCache(tmp_path / "cache"), []
    path = cache.ensure(HASH, writes(PLAIN, calls))
    assert cache.ensure(HASH, writes(PLAIN, calls)) == path
    assert len(calls) == 1
    for name in ("one", "two"):
        cache.checkout(path, tmp_path / name)
    with (tmp_path / "one" / "src" / "train.py").open("a") as file:
        file.write("edited")
    assert (tmp_path / "two" / "src" / "train.py").read_text() == "print('hi')\n"
    assert (path / "src" / "train.py").read_text() == "print('hi')\n"


def test_kinds_and_modes(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    cache.checkout(cache.ensure(HASH, writes(PLAIN)), tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (copy / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (copy / "src" / "train.py").stat().st_mode & 0o7777 == 0o644
    assert os.readlink(copy / "data") == "/mnt/data"
    assert (copy / "src" / "latest").read_text() == "print('hi')\n"
    assert (copy / "copy.py").read_text() == "print('hi')\n"
    assert (copy / "copy.py").stat().st_nlink == 1


def test_many_ask_and_one_fetches(tmp_path: Path) -> None:
    calls: list[int] = []
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: CodeCache(tmp_path).ensure(HASH, writes(PLAIN, calls)), range(8)))
    assert len(paths) == 1
    assert len(calls) == 1


def test_failed_fetch_leaves_nothing_and_the_next_tries_again(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)

    def broken(file: BinaryIO) -> None:
        file.write(PLAIN[:50])
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError):
        cache.ensure(HASH, broken)
    assert list((tmp_path / "trees").iterdir()) == []
    assert cache.ensure(HASH, writes(PLAIN)).is_dir()


def test_remains_without_a_mark_are_made_again(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    path = cache.ensure(HASH, writes(PLAIN))
    (path / "src" / "train.py").unlink()
    (path.parent / ".complete").unlink()
    assert (cache.ensure(HASH, writes(PLAIN)) / "src" / "train.py").exists()


def test_mark_of_another_boot_does_not_count(tmp_path: Path) -> None:
    cache, calls = CodeCache(tmp_path), []
    path = cache.ensure(HASH, writes(PLAIN, calls))
    (path.parent / ".complete").write_text("another boot")
    cache.ensure(HASH, writes(PLAIN, calls))
    assert len(calls) == 2


@pytest.mark.parametrize(
    "bad",
    [
        entry("/etc/airyard-test"),
        entry("../outside"),
        entry("a/../../outside"),
        entry("pipe", type=tarfile.FIFOTYPE),
        entry("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("link", type=tarfile.LNKTYPE, linkname="../../secret"),
        entry("link", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_entries_that_could_leave_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    with pytest.raises(SnapshotRefused, match=bad.name):
        CodeCache(tmp_path / "cache").ensure(HASH, writes(archive((bad, b""))))
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    through = archive(
        (entry("link", type=tarfile.SYMTYPE, linkname=str(outside)), b""), (entry("link/file"), b"x")
    )
    with pytest.raises(SnapshotRefused, match="exclude each other"):
        CodeCache(tmp_path / "cache").ensure(HASH, writes(through))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"no archive", PLAIN[:-40], archive((entry("x"), b"y" * 2000))[:60]])
def test_damaged_archives_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SnapshotRefused, match="no sound archive"):
        CodeCache(tmp_path).ensure(HASH, writes(data))


def test_size_is_bounded_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused, match="1000 bytes"):
        unpack(io.BytesIO(archive((entry("zeros"), bytes(10_000_000)))), tmp_path, limit_bytes=1000)
    assert list(tmp_path.iterdir()) == []


def test_unused_trees_are_evicted_and_a_late_checkout_says_so(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache")
    path = cache.ensure(HASH, writes(PLAIN))
    assert cache.evict(older_than_seconds=3600) == []
    os.utime(path.parent / ".last_used", (1, 1))
    assert cache.evict(older_than_seconds=3600) == [HASH]
    with pytest.raises(NotFound):
        cache.checkout(path, tmp_path / "copy")


@pytest.mark.parametrize("name", ["", "../../etc", "a/b"])
def test_hash_cannot_leave_the_cache(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvariantBroken):
        CodeCache(tmp_path).ensure(name, writes(PLAIN))
