"""Real runners with code and environments: caches, views, failures and interruptions of the preparation."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import signal
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.core.log_frames import LogStream
from airyard.node.exit_record import AttemptFolder
from airyard.node.zygote import Zygote
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = pytest.mark.e2e

ENVIRONMENT = {
    "version": "6",
    "python": None,
    "base_packages": [],
    "dependencies": [],
    "timeout_s": 300,
}
HASH = "0123456789abcdef" * 4


def archive(files: dict[str, str]) -> bytes:
    """Return a tar.gz as the client packs it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Node:
    """A zygote with its control plane, shared by the tests of this file: one environment cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = RunnerApi()
        self.api.start()
        self.zygote = Zygote(folder)
        self.count = 0
        self.pids: list[int] = []

    def member(self, command: str, **changes: Any) -> tuple[MemberSide, AttemptFolder]:
        self.count += 1
        key = f"{self.count}.0.0"
        token = f"aya_{key}.{secrets.token_hex(8)}"
        side = self.api.member(token)
        folder = AttemptFolder(self.folder / "attempts" / key)
        assert folder.create()
        request = {
            "key": key, "node": "n", "devices": [], "token": token, "server_url": self.api.url, "epoch": 1,
            "cookie": secrets.token_hex(16),
        }  # fmt: skip
        answer = self.zygote.start(request, "127.0.0.1")
        self.pids.append(answer["pid"])
        side.order("PREPARE", **prepare_order(command, run_id=self.count, **changes))
        return side, folder

    def run(self, command: str, **changes: Any) -> tuple[MemberSide, AttemptFolder]:
        side, folder = self.member(command, **changes)
        side.report("READY", 100)
        side.order("GO", **GO)
        side.report("LOGS_CLOSED", 60)
        return side, folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("node"))
    yield made
    made.zygote.close()
    for pid in made.pids:
        with contextlib.suppress(OSError):
            if b"airyard.node.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
    made.api.stop()


def test_code_is_the_working_folder(node: Node) -> None:
    node.api.code[HASH] = archive({"proj/main.py": "print('from code')\n", "proj/data/x.txt": "x\n"})
    code = {"tree_hash": HASH, "directory_name": "proj"}
    command = "python3 main.py; pwd; ls; test $PWD = $CODE_SOURCE_PATH && echo same; rm main.py"
    for _ in range(2):  # the second finds the tree in the cache, unharmed by the first
        side, _ = node.run(command, code=code)
        lines = side.output().decode().split()
        assert lines[:2] == ["from", "code"]
        assert lines[2].endswith("/code/proj")
        assert lines[3:] == ["data", "main.py", "same"]
        assert side.report("READY")["prepared"]["code_ms"] >= 0
    node.api.code.clear()
    node.run("true", code=code)


def test_an_environment_is_built_once_and_each_attempt_has_its_own_view(node: Node) -> None:
    command = (
        "python -c 'import sys; print(sys.prefix)'; command -v python; "
        "ls $VIRTUAL_ENV/lib/python*/site-packages/poison.py 2>/dev/null; "
        "touch $(echo $VIRTUAL_ENV/lib/python*/site-packages)/poison.py; echo $VIRTUAL_ENV"
    )
    first, folder = node.run(command, environment=ENVIRONMENT)
    second, _ = node.run(command, environment=ENVIRONMENT)
    assert first.report("READY")["prepared"]["environment_hit"] is False
    assert second.report("READY")["prepared"]["environment_hit"] is True
    prefix, python, variable = first.output().decode().split()
    assert prefix == variable
    assert python == f"{prefix}/bin/python"
    assert str(folder.path) in prefix
    assert len(second.output().split()) == 3, "the first attempt's file is not there"
    notes = first.output(LogStream.AIRYARD).decode()
    assert "airyard: building environment 6" in notes
    assert second.output(LogStream.AIRYARD) == b""
    deadline = time.monotonic() + 10
    while folder.is_locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    left = sorted(path.name for path in folder.path.iterdir())
    assert left == ["exit.json", "lock", "runner.json", "runner.log"]


def test_a_dependency_that_does_not_resolve_is_the_environments_fault(node: Node, tmp_path: Path) -> None:
    # Only an empty folder to look in, so no network is asked.
    asked = {**ENVIRONMENT, "dependencies": ["--no-index", "no-such-package-zz==1"]}
    side, _ = node.member("true", environment=asked)
    exited = side.report("EXITED", 60)
    assert (exited["cause"], exited["started"], exited["permanent"]) == ("ENVIRONMENT", False, True)
    assert "no-such-package-zz" in exited["message"]
    side.report("LOGS_CLOSED")


def test_cancel_while_preparing(node: Node) -> None:
    # A build that sleeps: a local source package whose build backend takes its time.
    package = node.folder / "slow-package"
    package.mkdir()
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
        '[project]\nname = "slow"\ndynamic = ["version"]\n'
    )
    (package / "slow.py").write_text(
        "import time\n"
        "def get_requires_for_build_wheel(*_):\n"
        f"    open({str(package / 'building')!r}, 'w').close()\n"
        "    time.sleep(600)\n"
        "prepare_metadata_for_build_wheel = build_wheel = get_requires_for_build_wheel\n"
    )
    asked = {**ENVIRONMENT, "dependencies": [f"slow @ {package.as_uri()}"]}
    side, _ = node.member("true", environment=asked)
    deadline = time.monotonic() + 60
    while not (package / "building").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=10)
    exited = side.report("EXITED", 10)
    assert (exited["cause"], exited["started"]) == ("CANCELLED", False)
    side.report("LOGS_CLOSED")
    assert not [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(package).encode() in _command_line(entry)
    ]


def test_an_environment_that_takes_too_long_is_its_own_fault(node: Node) -> None:
    asked = {**ENVIRONMENT, "version": "slow", "timeout_s": 0.001, "dependencies": ["--no-index"]}
    side, _ = node.member("true", environment=asked)
    exited = side.report("EXITED", 30)
    assert exited["cause"] == "ENVIRONMENT"
    assert "limit of 0.001 s" in exited["message"]


def test_code_that_the_server_lacks(node: Node) -> None:
    side, _ = node.member("true", code={"tree_hash": "f" * 64, "directory_name": "x"})
    exited = side.report("EXITED")
    assert exited["cause"] == "PLATFORM"
    assert "cannot be had" in exited["message"]


def test_an_order_with_a_problem_says_it(node: Node) -> None:
    side, _ = node.member("true", problem="secret team/key is not stored")
    exited = side.report("EXITED")
    assert (exited["cause"], exited["permanent"]) == ("ENVIRONMENT", True)
    assert exited["message"] == "secret team/key is not stored"


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_the_default_interpreter_is_the_one_that_runs_the_node(node: Node) -> None:
    side, _ = node.run("python -c 'import sys; print(sys.version)'", environment=ENVIRONMENT)
    assert side.output().decode().strip() == sys.version
