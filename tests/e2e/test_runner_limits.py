"""Limits that the kernel enforces: host memory by cgroup, a full disk by tmpfs, a stopped process by SIGSTOP."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.node.containment import detect
from airyard.node.exit_record import AttemptFolder
from airyard.node.private_mounts import can_mount_shm
from airyard.node.zygote import Zygote
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = pytest.mark.e2e


@pytest.fixture
def api() -> Iterator[RunnerApi]:
    server = RunnerApi()
    server.start()
    yield server
    server.stop()


def start(api: RunnerApi, zygote: Zygote, node: Path, command: str, **changes: object) -> MemberSide:
    token = f"aya_{secrets.token_hex(8)}"
    side = api.member(token)
    assert AttemptFolder(node / "attempts" / "1.0.0").create()
    request = {
        "key": "1.0.0", "node": "n", "devices": [], "token": token, "server_url": api.url, "epoch": 1,
        "cookie": secrets.token_hex(16),
    }  # fmt: skip
    assert "pid" in zygote.start(request, "127.0.0.1")
    side.order("PREPARE", **prepare_order(command, **changes))
    side.report("READY")
    side.order("GO", **GO)
    return side


def until_gone(node: Path) -> None:
    folder = AttemptFolder(node / "attempts" / "1.0.0")
    deadline = time.monotonic() + 20
    while folder.is_locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_host_memory_kill_is_named_as_such(api: RunnerApi, tmp_path: Path) -> None:
    if not detect().limits:
        pytest.skip("no memory cgroup can be made here")
    zygote = Zygote(tmp_path)
    try:
        side = start(
            api,
            zygote,
            tmp_path,
            "python3 -c 'b = bytearray(300 << 20)'",
            limits={"memory_bytes": 100 << 20, "cpus": None},
        )
        exited = side.report("EXITED")
        assert (exited["cause"], exited["out_of_memory"]) == ("USER_LIMIT", True)
        assert exited["message"].startswith("host memory: ")
        side.report("LOGS_CLOSED")
        until_gone(tmp_path)
    finally:
        zygote.close()


def test_a_full_disk_is_named_and_the_end_still_arrives(api: RunnerApi, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    node = tmp_path / "small"
    node.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(node)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        zygote = Zygote(node)
        try:
            fill = "head -c 40000000 /dev/zero > $AIRYARD_SCRATCH/big; echo after; exit 3"
            side = start(api, zygote, node, fill)
            exited = side.report("EXITED")
            assert exited["cause"] == "USER_LIMIT"
            assert "disk" in exited["message"]
            assert side.report("LOGS_CLOSED")["sha256"] == side.frames.hexdigest()
            assert side.output() == b"after\n"
            until_gone(node)
            record = AttemptFolder(node / "attempts" / "1.0.0").exit()
            assert record is not None
            assert record["delivered"] is True
        finally:
            zygote.close()
    finally:
        subprocess.run(["umount", "-l", str(node)], check=True)


def test_a_stopped_process_is_killed_at_the_deadline(api: RunnerApi, tmp_path: Path) -> None:
    zygote = Zygote(tmp_path)
    try:
        side = start(api, zygote, tmp_path, "trap 'echo x' TERM; echo $$; while :; do sleep 1; done")
        side.wait(lambda: side.output())
        pid = int(side.output())
        os.kill(pid, signal.SIGSTOP)
        side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=0.3)
        assert side.report("EXITED", 10)["signal"] == 9
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            raise AssertionError("it is still there")
        until_gone(tmp_path)
    finally:
        zygote.close()


def test_shm_has_the_size_that_was_asked_for(api: RunnerApi, tmp_path: Path) -> None:
    if not can_mount_shm(1 << 20):
        pytest.skip("this machine does not allow a private mount")
    zygote = Zygote(tmp_path)
    try:
        limits = {"memory_bytes": None, "cpus": None, "shm_bytes": 1 << 20}
        side = start(api, zygote, tmp_path, "head -c 2000000 /dev/zero > /dev/shm/fill", limits=limits)
        assert side.report("EXITED")["code"] == 1
        side.report("LOGS_CLOSED")
        until_gone(tmp_path)
    finally:
        zygote.close()
    assert not Path("/dev/shm/fill").exists()
