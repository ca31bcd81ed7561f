"""Environments built by the real uv from a folder of wheels."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airyard.node.environment import EnvironmentRequest, EnvironmentStore
from airyard.node.file_locks import Cancelled
from airyard.node.uv import DiskFull, DownloadFailed, ResolveFailed, find_uv


def request(*dependencies: str, flags: tuple[str, ...] = ("--no-index",)) -> EnvironmentRequest:
    return EnvironmentRequest(
        base_version="5", python=Path(sys.executable), dependencies=dependencies, flags=flags
    )


@pytest.fixture
def inherited(wheels: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PIP_FIND_LINKS": str(wheels)}


@pytest.fixture
def store(tmp_path: Path, inherited: dict[str, str]) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "store", inherited=inherited)


def test_it_is_built_then_found(store: EnvironmentStore) -> None:
    lines: list[str] = []
    first = store.ensure(request("tool==1.0"), progress=lines.append)
    second = store.ensure(request("tool==1.0"), progress=lambda line: pytest.fail(f"uv ran again: {line}"))
    assert (first.was_built, second.was_built) == (True, False)
    assert first.key == second.key
    assert "tool==1.0" in first.lock_text
    assert any("Installed" in line for line in lines)
    said = subprocess.run([first.path / "bin" / "tool-cli"], capture_output=True, text=True, check=True)
    assert said.stdout == "tool 1.0\n"
    subprocess.run([first.path / "bin" / "python", "-m", "pip", "--version"], capture_output=True, check=True)


def test_readiness_is_known_without_running_uv(
    store: EnvironmentStore, tmp_path: Path, inherited: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not store.is_ready(request("tool==1.0"))
    assert not (tmp_path / "store").exists()
    made = store.ensure(request("tool==1.0"))
    monkeypatch.setattr("airyard.node.environment.run_uv", lambda *_, **__: pytest.fail("uv ran"))
    assert store.is_ready(request("tool==1.0"))
    assert EnvironmentStore(tmp_path / "store", inherited=inherited).is_ready(request("tool==1.0"))
    assert not store.is_ready(request("tool==2.0"))
    hasty = EnvironmentStore(tmp_path / "store", inherited=inherited, lock_lifetime_seconds=0)
    assert not hasty.is_ready(request("tool==1.0"))
    made.release()
    store.evict(keep_bytes=1 << 62, older_than_seconds=0)
    assert not store.is_ready(request("tool==1.0"))


def test_same_lock_is_the_same_environment(store: EnvironmentStore) -> None:
    assert store.ensure(request("tool==2.0")).key == store.ensure(request("tool>=1.5")).key


def test_files_are_links_to_the_cache(store: EnvironmentStore) -> None:
    made = store.ensure(request("big"))
    (file,) = made.path.glob("lib/python*/site-packages/big.bin")
    assert file.stat().st_nlink == 2


def test_many_ask_and_one_builds(tmp_path: Path, inherited: dict[str, str]) -> None:
    def ask(_: int) -> bool:
        return EnvironmentStore(tmp_path, inherited=inherited).ensure(request("tool")).was_built

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(ask, range(6))) == [False] * 5 + [True]


def test_remains_of_a_killed_builder_are_built_again(store: EnvironmentStore, tmp_path: Path) -> None:
    made = store.ensure(request("tool"))
    made.release()
    (made.path.parent / ".complete").unlink()
    (tool,) = made.path.glob("lib/python*/site-packages/tool.py")
    tool.unlink()
    again = store.ensure(request("tool"))
    assert again.was_built
    assert tool.exists()


BUILDER = """
import os, sys
from pathlib import Path
from airyard.node.environment import EnvironmentRequest, EnvironmentStore
store = EnvironmentStore(Path(sys.argv[1]), inherited=dict(os.environ))
ask = EnvironmentRequest(base_version="5", python=Path(sys.executable), dependencies=("slow",), flags=("--no-index",))
store.ensure(ask, progress=lambda line: print(line, flush=True))
"""


def processes_of(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_stopping_kills_uv_and_leaves_nothing(store: EnvironmentStore, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(Cancelled):
        store.ensure(request("slow"), should_stop=lambda: time.monotonic() - started > 2)
    assert list((tmp_path / "store" / "envs").iterdir()) == []
    deadline = time.monotonic() + 10
    while processes_of(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_orphaned_uv_keeps_the_lock_and_a_waiter_can_be_cancelled(
    tmp_path: Path, inherited: dict[str, str]
) -> None:
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tmp_path)], env=inherited, stdout=subprocess.PIPE, text=True
    )
    try:
        assert builder.stdout is not None
        while "Creating virtual environment" not in builder.stdout.readline():
            pass
        time.sleep(1)
        builder.kill()
        builder.wait()
        lines: list[str] = []
        started = time.monotonic()
        with pytest.raises(Cancelled):
            EnvironmentStore(tmp_path, inherited=inherited).ensure(
                request("slow"), progress=lines.append, should_stop=lambda: time.monotonic() - started > 1
            )
        assert lines == ["Another attempt on this machine is building the same environment."]
    finally:
        for pid in processes_of(tmp_path):
            os.kill(pid, 9)


def test_contradiction_is_a_resolve_failure_in_words_of_uv(store: EnvironmentStore) -> None:
    with pytest.raises(ResolveFailed, match="tool==3"):
        store.ensure(request("tool==3"))


def test_unreachable_index_may_be_tried_again(tmp_path: Path, inherited: dict[str, str]) -> None:
    store = EnvironmentStore(tmp_path, inherited={**inherited, "UV_HTTP_RETRIES": "0"})
    with pytest.raises(DownloadFailed) as caught:
        store.ensure(request("--index-url http://127.0.0.1:9/simple", "absent", flags=()))
    assert caught.value.retryable


def test_unreachable_index_does_not_stop_what_was_resolved_before(
    tmp_path: Path, wheels: Path, inherited: dict[str, str]
) -> None:
    handler = functools.partial(QuietHandler, directory=str(wheels))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    variables = {**inherited, "UV_HTTP_RETRIES": "0"}
    variables["PIP_FIND_LINKS"] = f"http://127.0.0.1:{server.server_port}/"
    store = EnvironmentStore(tmp_path, inherited=variables, lock_lifetime_seconds=0.5)
    try:
        first = store.ensure(request("tool"))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    shutil.rmtree(tmp_path / "uv-cache")
    time.sleep(0.6)
    lines: list[str] = []
    assert store.ensure(request("tool"), progress=lines.append).key == first.key
    assert "resolved before" in lines[-1]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is given by the base
        """Say nothing."""


def test_environments_in_use_are_not_evicted(store: EnvironmentStore, tmp_path: Path) -> None:
    old, young = store.ensure(request("tool==1.0")), store.ensure(request("tool==2.0"))
    os.utime(old.path.parent / ".last_used", (1, 1))
    assert store.evict(keep_bytes=10**12, older_than_seconds=3600) == []
    old.release()
    assert store.evict(keep_bytes=10**12, older_than_seconds=3600) == [old.key]
    assert store.evict(keep_bytes=0, older_than_seconds=3600) == []
    young.release()
    assert store.evict(keep_bytes=0, older_than_seconds=3600) == [young.key]
    assert store.ensure(request("tool==1.0")).was_built


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small file system can only be mounted by root")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder], capture_output=True)
    if made.returncode != 0:
        pytest.skip("this machine does not allow mounting: " + made.stderr.decode())
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_is_named_as_such(small_disk: Path, inherited: dict[str, str]) -> None:
    with pytest.raises(DiskFull):
        EnvironmentStore(small_disk, inherited=inherited).ensure(request("big"))


def test_uv_is_found_beside_the_interpreter() -> None:
    assert find_uv().parent == Path(sys.executable).parent or shutil.which("uv")
