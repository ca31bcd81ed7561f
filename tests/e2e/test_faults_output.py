"""Hostile output: no newline, invalid UTF-8, a line of 10 MB, a secret in two writes, children that get away."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def downloaded(yard: Yard, run_id: int, folder: Path) -> bytes:
    yard.ok("logs", str(run_id), "--download-to", str(folder))
    (path,) = folder.rglob("*.log")
    return path.read_bytes()


def test_output_is_kept_octet_by_octet(yard: Yard, tmp_path: Path) -> None:
    yard.call("secrets", "put", "out/token", stdin="s3cr3t-value")
    program = (
        "import os, sys, time\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'bad \\xff\\xfe bytes\\n')\n"
        "out.write(b'x' * (10 << 20) + b'\\n')\n"
        "secret = os.environ['TOKEN'].encode()\n"
        "for part in (b'<', secret[:5], secret[5:], b'>\\n', b'50%\\r100%\\n', b'no newline at the end'):\n"
        "    out.write(part); out.flush(); time.sleep(0.05)\n"
    )
    folder = yard.home / "output"
    folder.mkdir()
    (folder / "say.py").write_text(program)
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    path = yard.file("python say.py", code_source=source, secrets={"TOKEN": "out/token"})
    done = yard.call("run", path, "--watch", "--name", "hostile")
    assert done.returncode == 0, done.stderr
    run_id = int(yard.data("get", "hostile")["run_id"])
    expected = b"bad \xff\xfe bytes\n" + b"x" * (10 << 20) + b"\n<***>\n50%\r100%\nno newline at the end"
    assert downloaded(yard, run_id, tmp_path) == expected
    shown = done.stdout.split("\n")
    assert shown[0] == "bad \ufffd\ufffd bytes"
    assert shown[1] == "x" * (10 << 20)
    assert shown[2] == "<***>"
    assert shown[3] == "100%"
    assert shown[4].startswith("no newline at the end")
    assert len(shown) <= 6


def test_a_child_in_the_background_does_not_hold_the_run_open(yard: Yard, tmp_path: Path) -> None:
    mark = str(600 + time.time_ns() % 100_000_000)
    # In sessions of their own, environment cleared, output still ours, and one that ignores every polite word.
    command = (
        f"(setsid env -i PATH=/usr/bin:/bin bash -c 'trap \"\" TERM HUP; sleep {mark}; sleep {mark}' &); "
        f"(setsid env -i /usr/bin/sleep {mark} >/dev/null 2>&1 </dev/null &); sleep 0.3; echo done"
    )
    run = yard.ended(yard.submit(command))
    assert run["outcome"] == "SUCCEEDED"
    assert downloaded(yard, run["run_id"], tmp_path) == b"done\n"
    left = [line for line in command_lines() if mark.encode() in line]
    if yard.data("status")["containment"]["kind"] == "none":
        pytest.skip(
            "no cgroup can be written here: a child that clears its environment escapes, and status says so"
        )
    assert not left


def command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_a_flood_of_output_is_complete(yard: Yard, tmp_path: Path) -> None:
    run = yard.ended(yard.submit("seq 1 2000000; seq 1 10 >&2", nodes=1))
    assert run["outcome"] == "SUCCEEDED"
    assert run["logs_complete"] is True
    lines = downloaded(yard, run["run_id"], tmp_path).split(b"\n")
    assert len(lines) == 2_000_011
    done = yard.call("logs", str(run["run_id"]), "--tail", "3")
    assert len(done.stdout.splitlines()) == 3
