"""Mounts of one process, made for real: limits hold inside, nothing is seen outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from airyard.node.private_mounts import SHM, can_mount_overlay, can_mount_shm, mount_overlay, mount_shm

SIZE_BYTES = 1 << 20
FILL = f"head -c {2 * SIZE_BYTES} /dev/zero > {SHM}/fill; stat -c %s {SHM}/fill; stat -fc '%b %S' {SHM}"


@pytest.fixture(autouse=True)
def _allowed() -> None:
    if not can_mount_shm(SIZE_BYTES):
        pytest.skip("this machine does not allow a private mount")


def run(script: str, before_exec: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", script], preexec_fn=before_exec, capture_output=True, text=True, check=False
    )


def test_shm_is_full_at_its_size_and_gone_with_the_process() -> None:
    before, mounts = sorted(os.listdir(SHM)), Path("/proc/self/mounts").read_text()
    done = run(f"ls -A {SHM}; {FILL}", partial(mount_shm, SIZE_BYTES))
    assert "No space left" in done.stderr
    written, whole = done.stdout.splitlines()
    blocks, block_bytes = map(int, whole.split())
    assert int(written) == blocks * block_bytes == SIZE_BYTES
    assert sorted(os.listdir(SHM)) == before
    assert Path("/proc/self/mounts").read_text() == mounts


def test_each_process_has_its_own() -> None:
    for _ in range(2):
        done = run(f"ls -A {SHM}; echo x > {SHM}/one", partial(mount_shm, SIZE_BYTES))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_no_bytes_at_all_is_not_no_limit() -> None:
    done = run(FILL, partial(mount_shm, 0))
    assert int(done.stdout.splitlines()[0]) == os.sysconf("SC_PAGE_SIZE")


def test_it_goes_together_with_an_overlay(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("lower", "upper", "work", "view")]
    for folder in folders:
        folder.mkdir()
    lower, upper, work, view = map(os.fspath, folders)
    if not can_mount_overlay(lower, upper, work, view):
        pytest.skip("this machine does not allow an overlay mount")
    (tmp_path / "lower" / "shared").write_text("shared")

    def enter() -> None:
        mount_overlay(lower, upper, work, view)
        mount_shm(SIZE_BYTES)

    done = run(f"cat {view}/shared; echo; {FILL}", enter)
    assert done.stdout.splitlines()[:2] == ["shared", str(SIZE_BYTES)]
    assert os.listdir(view) == []
