"""Blobs on a real disk: all or nothing, names that cannot leave the folder, what a crash leaves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.adapters.blob_files import FileBlobStore
from airyard.core.errors import NotFound, Unavailable, UserError

HASH = "a" * 64


def test_a_blob_is_stored_once_and_read_back(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path / "code")
    assert not store.exists(HASH)
    assert store.put(HASH, [b"one ", b"", b"two"]) == 7
    assert store.put(HASH, iter([b"one two"])) == 7
    assert store.exists(HASH)
    with store.open(HASH) as file:
        store.delete(HASH)
        assert file.read() == b"one two"
    assert not store.exists(HASH)
    store.delete(HASH)
    with pytest.raises(NotFound):
        store.open(HASH)


def test_names_tell_size_and_last_use(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)
    store.put("b" * 64, [b"12345"])
    store.put(HASH, [b"1"])
    (tmp_path / "stray").write_bytes(b"x")
    os.utime(tmp_path / f"{HASH}.tar.gz", (1000, 1000))
    found = {name: (size, used_ms) for name, size, used_ms in store.names()}
    assert set(found) == {HASH, "b" * 64}
    assert found[HASH] == (1, 1_000_000)
    assert store.exists(HASH)
    assert {name: used for name, _, used in store.names()}[HASH] > 1_000_000_000_000


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a" * 129, "a.b", "a\n", "-x", "ü"])
def test_bad_names_are_refused(tmp_path: Path, name: str) -> None:
    store = FileBlobStore(tmp_path)
    for use in (store.exists, store.open, store.delete, lambda bad: store.put(bad, [b"x"])):
        with pytest.raises(UserError):
            use(name)
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path)

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError("the client went away")

    with pytest.raises(ConnectionError):
        store.put(HASH, broken())
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".partial-abc").write_bytes(b"half")
    store = FileBlobStore(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert list(store.names()) == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        store = FileBlobStore(tmp_path)
        with pytest.raises(Unavailable) as refused:
            store.put(HASH, [bytes(1000)] * 100)
        assert refused.value.code == "BLOB_DISK_FULL"
        assert list(tmp_path.iterdir()) == []
        assert store.put(HASH, [bytes(1000)]) == 1000
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
