"""Hosts reached by SSH: their names, what ssh's refusals mean, the first look, what is carried, the unit."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import airyard
from airyard.core.errors import AiryardError
from airyard.node.remote import payload, probe, steps
from airyard.node.remote.ssh import refusal
from airyard.node.remote.target import Target, parse_target

VERSION = ".".join(map(str, sys.version_info[:3]))
GPU7 = Target(host="gpu7", user="ops", port=2222)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ssh://ops@gpu7:2222", GPU7),
        ("ssh://10.0.0.7", Target(host="10.0.0.7")),
        ("ssh://ops@[fd00::7]", Target(host="fd00::7", user="ops")),
    ],
)
def test_names_of_hosts(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert str(target) == text


@pytest.mark.parametrize(
    "text",
    [
        "gpu7",
        "http://gpu7",
        "ssh://",
        "ssh://a:secret@gpu7",
        "ssh://gpu7/tmp",
        "ssh://-oProxyCommand=x",
        "ssh://h:99999",
        "ssh://a b",
    ],
)
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"ssh://|port"):
        parse_target(text)


def test_an_option_cannot_be_smuggled_in_as_a_host() -> None:
    assert GPU7.arguments() == ["-p", "2222", "-l", "ops", "--", "gpu7"]


@pytest.mark.parametrize(
    ("said", "code", "command"),
    [
        ("Host key verification failed.", "HOST_KEY_UNKNOWN", "ssh -p 2222 ops@gpu7"),
        (
            "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "HOST_KEY_CHANGED",
            "ssh-keygen -R '[gpu7]:2222'",
        ),
        ("ops@gpu7: Permission denied (publickey).", "SSH_DENIED", "ssh -p 2222 ops@gpu7"),
        ("ssh: Could not resolve hostname gpu7: Name or service not known", "HOST_UNKNOWN", None),
        (
            "ssh: connect to host gpu7 port 2222: Connection timed out",
            "HOST_UNREACHABLE",
            "ssh -p 2222 ops@gpu7 true",
        ),
        ("", "HOST_UNREACHABLE", "ssh -p 2222 ops@gpu7 true"),
    ],
)
def test_refusals_of_ssh(said: str, code: str, command: str | None) -> None:
    error = refusal(GPU7, said)
    assert error.fix is not None
    assert (error.code, error.fix.command) == (code, command)


def looked(home: str, *, path: str, python: str = "", **variables: str) -> probe.Look:
    """Ask this machine the question with a real shell."""
    text = probe.script(home=home, python=python, wanted_version=VERSION)
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=text,
        capture_output=True,
        text=True,
        env={"PATH": path, "HOME": home, **variables},
        check=True,
    )
    return probe.read("Welcome! Today = Monday\n" + done.stdout)


def tools(folder: Path, *names: str) -> str:
    """Return a PATH that has the plainest tools, and of Python only what is named."""
    folder.mkdir()
    for name in ("uname", "id", "dirname", "df", "tail", *names):
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return str(folder)


def test_the_first_look_finds_python_and_room(tmp_path: Path) -> None:
    path = tools(tmp_path / "bin")
    look = looked(str(tmp_path / "not" / "yet"), path=path, python=sys.executable)
    assert (look.os, look.home, look.writable) == ("Linux", str(tmp_path / "not" / "yet"), True)
    assert look.free_bytes > 0
    assert look.pythons[sys.executable] == VERSION
    python = probe.judge(look, name="h", python="", wanted_version=VERSION, to_install=False)
    assert python == sys.executable


def test_a_home_below_the_users_own(tmp_path: Path) -> None:
    path = tools(tmp_path / "bin")
    assert looked("~/.airyard", path=path, HOME=str(tmp_path)).home == f"{tmp_path}/.airyard"
    assert looked("yard's", path=path, HOME=str(tmp_path)).home == f"{tmp_path}/yard's"


@pytest.mark.parametrize(
    ("pythons", "code", "words"),
    [
        ({}, "HOST_PYTHON_MISSING", "has no Python"),
        ({"/usr/bin/python3": "3.9.2"}, "HOST_PYTHON_VERSION", "needs 3.11 or newer"),
        (
            {"/usr/bin/python3": "3.13.0", "/opt/p": "3.11.1"},
            "HOST_PYTHON_VERSION",
            "3.13.0 (/usr/bin/python3), 3.11.1",
        ),
    ],
)
def test_a_python_that_will_not_do(pythons: dict[str, str], code: str, words: str) -> None:
    look = probe.Look(home="/h", os="Linux", writable=True, free_bytes=10**12, pythons=pythons)
    error = probe.judge(look, name="h", python="", wanted_version="3.11.7", to_install=True)
    assert isinstance(error, AiryardError)
    assert (error.code, words in error.message) == (code, True), error.message
    assert error.fix is not None
    assert error.fix.command == "uv python install 3.11.7"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"os": "Darwin"}, "HOST_SYSTEM"),
        ({"writable": False}, "HOST_NOT_WRITABLE"),
        ({"free_bytes": 10**9}, "HOST_DISK_FULL"),
    ],
)
def test_a_host_that_will_not_do(fields: dict[str, Any], code: str) -> None:
    good = {"home": "/h", "os": "Linux", "writable": True, "free_bytes": 10**12, "pythons": {"/p": "3.11.7"}}
    error = probe.judge(
        probe.Look(**{**good, **fields}), name="h", python="", wanted_version="3.11.7", to_install=True
    )
    assert isinstance(error, AiryardError)
    assert error.code == code


def test_the_wheel_is_what_runs_here_and_the_same_each_time() -> None:
    name, data = payload.make_wheel()
    assert (name, data) == payload.make_wheel()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = set(archive.namelist())
        record = {row[0] for row in csv.reader(io.StringIO(archive.read(f"{_info()}/RECORD").decode()))}
        assert names == record
        own = Path(airyard.__file__).parent / "node" / "remote" / "steps.py"
        assert archive.read("airyard/node/remote/steps.py") == own.read_bytes()
        assert "airyard = airyard.cli.main:main" in archive.read(f"{_info()}/entry_points.txt").decode()
    assert not [each for each in names if "__pycache__" in each]
    assert {"airyard/py.typed", "airyard/node/remote/node.lock"} <= names


def _info() -> str:
    return f"airyard-{airyard.__version__}.dist-info"


def test_the_archive_has_everything(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(os.urandom(3 << 20))
    carried = payload.make(tmp_path)
    data = gzip.decompress(b"".join(payload.archive(carried, None)))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == [carried.wheel_name, "node.lock", "wheelhouse/a-1-py3-none-any.whl"]
    with pytest.raises(AiryardError, match="holds no wheels"):
        payload.make(tmp_path / "..")


def step(asked: dict[str, Any], more: bytes = b"") -> dict[str, Any]:
    """Run one step as a host does, by a Python that has nothing of Airyard."""
    program = Path(steps.__file__).read_bytes()
    boot = "import sys;s=sys.stdin.buffer;exec(compile(s.read(int(s.readline())),'steps','exec'))"
    stdin = f"{len(program)}\n".encode() + program + json.dumps(asked).encode() + b"\n" + more
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", boot], input=stdin, capture_output=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_steps_need_nothing_but_python(tmp_path: Path) -> None:
    asked = {"home": str(tmp_path), "folder": "x", "token_digest": "", "server": "127.0.0.1:1"}
    found = step({"step": "look", **asked})["result"]
    assert (found["joined"], found["live"], found["installed"]) == (False, False, False)
    assert "refused" in found["away"]
    carried = payload.make(None)
    assert step({"step": "receive", **asked}, b"".join(payload.archive(carried, None))) == {"result": {}}
    assert (tmp_path / "install" / "incoming" / carried.wheel_name).read_bytes() == carried.texts[
        carried.wheel_name
    ]
    cut = step({"step": "receive", **asked}, b"".join(payload.archive(carried, None))[:5000])
    assert cut["error"]["code"] == "REMOTE_FAILED"
    assert not (tmp_path / "install" / "incoming").exists()


def test_the_unit_keeps_words_together(tmp_path: Path) -> None:
    text = steps.unit("/h%", ["/bin/airyard", "--label", 'a="b c"', "$x%y"], system=True)
    assert 'ExecStart="/bin/airyard" "--label" "a=\\"b c\\"" "$$x%%y"' in text
    assert "WantedBy=multi-user.target" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to read the unit with")
    file = tmp_path / "airyard-node.service"
    file.write_text(steps.unit("/h", ["/bin/true", "--label", 'a="b c"'], system=False))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "airyard-node" not in done.stderr, done.stderr
