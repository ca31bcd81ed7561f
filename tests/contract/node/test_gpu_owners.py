"""Two Unix users on one machine's GPUs: real locks, real users, nvidia-ml-py over a compiled stand-in for NVML."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.node.gpu_locks import GpuLocks, shared_folder

pytestmark = pytest.mark.e2e

ASK = """
import json, os, sys
from pathlib import Path
from airyard.node.inventory import Inventory, Offer, open_nvml
nvml = open_nvml()
assert nvml is not None, "the stand-in was not loaded"
# Only now: the interpreter and the stand-in may lie where the other user cannot read.
if user := int(sys.argv[2]):
    os.setgroups([]); os.setgid(user); os.setuid(user)
nodes = Inventory(Offer(cpu_slots=0, lock_folder=Path(sys.argv[1])), nvml).nodes(frozenset())
print(json.dumps({"nodes": [node.as_json() for node in nodes], "values": nvml.values(0)}), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True)
    folder.chmod(0o755)
    return folder


@contextlib.contextmanager
def yard(library: Path, locks: Path, user: int = 0) -> Iterator[dict[str, Any]]:
    """Have a process claim the GPUs as ``user`` and hold them for the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", ASK, str(locks), str(user)],
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(20) == 0


def owners(answer: dict[str, Any]) -> list[str | None]:
    (node,) = answer["nodes"]
    assert node["accelerator"] == "GPU_2xH100"
    return [device["owner"] for device in node["devices"]]


def test_the_first_yard_owns_the_gpus_and_the_second_names_it(library: Path, tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    with yard(library, locks) as first:
        assert owners(first) == [None, None]
        values = first["values"]
        assert values["utilization_percentage"] == 42
        assert values["memory_usage_percentage"] == 25
        assert values["power_usage_percentage"] == 50
        with yard(library, locks) as second:
            assert all("Airyard agent PID" in (owner or "") for owner in owners(second))
    with yard(library, locks) as third:
        assert owners(third) == [None, None]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_yard_is_named_by_user(library: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = Path(os.environ.get("TMPDIR", "/tmp")) / f"airyard-test-gpus-{os.getpid()}"
    try:
        with yard(library, outside, user=65534) as stranger:
            assert owners(stranger) == [None, None]
            with yard(library, outside) as ours:
                assert all("(uid 65534)" in (owner or "") for owner in owners(ours))
        # What the stranger left behind does not keep us out, nor ours the stranger.
        with yard(library, outside) as ours:
            assert owners(ours) == [None, None]
            with yard(library, outside, user=65534) as stranger:
                assert all("user root (uid 0)" in (owner or "") for owner in owners(stranger))
        assert stat.S_IMODE(outside.stat().st_mode) == 0o1777
    finally:
        shutil.rmtree(outside, ignore_errors=True)


def test_a_claim_can_be_repeated_and_released(tmp_path: Path) -> None:
    mine, other = GpuLocks(shared_folder(tmp_path / "l")), GpuLocks(shared_folder(tmp_path / "l"))
    assert mine.claim("GPU-1") is None
    assert mine.claim("GPU-1") is None
    assert f"PID {os.getpid()}" in (other.claim("GPU-1") or "")
    mine.release_all()
    assert other.claim("GPU-1") is None
    other.release_all()


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        shared_folder(tmp_path / "file" / "locks")
