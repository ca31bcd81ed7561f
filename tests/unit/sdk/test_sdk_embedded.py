"""The local server: what is known without starting one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.sdk import embedded


def test_the_command_line_carries_no_token(tmp_path: Path) -> None:
    line = embedded.server_command(tmp_path, ["--simulate", "GPU_1xA10=1"])
    assert line == [
        sys.executable,
        "-m",
        "airyard.server",
        "--home",
        str(tmp_path),
        "--simulate",
        "GPU_1xA10=1",
    ]


def test_an_endpoint_is_read_or_counts_as_none(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    assert embedded.read_endpoint(tmp_path) is None
    (folder / "endpoint.json").write_text("{")
    assert embedded.read_endpoint(tmp_path) is None
    (folder / "endpoint.json").write_text('{"url":"http://127.0.0.1:7","pid":5,"version":"1"}')
    found = embedded.read_endpoint(tmp_path)
    assert found is not None
    assert (found.url, found.pid) == ("http://127.0.0.1:7", 5)


def test_a_damaged_endpoint_hides_no_live_server(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "endpoint.json").write_text("{")
    (folder / "lock").write_text(json.dumps({"pid": os.getpid(), "started_ms": 1, "host": "::1", "port": 7}))
    found = embedded.read_endpoint(tmp_path)
    assert found is not None
    assert (found.url, found.pid) == ("http://[::1]:7", os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (folder / "lock").write_text(json.dumps({"pid": ended.pid, "host": "127.0.0.1", "port": 7}))
    assert embedded.read_endpoint(tmp_path) is None


def test_where_no_server_can_run_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SERVER_MODULES", ("fastapi", "no_such_module_here"))
    with pytest.raises(UserError, match="missing: no_such_module_here") as caught:
        embedded.check_startable(tmp_path)
    assert caught.value.fix is not None
    assert caught.value.fix.command == "pip install 'airyard[server]'"
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="Linux only"):
        embedded.check_startable(tmp_path)


def test_a_servers_own_error_is_passed_on(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text('old\n{"error":{"code":"PORT_TAKEN","kind":"PERMANENT","message":"port 7 is taken"}}\n')
    error = embedded._failed("ended", log, 4)
    assert (type(error), error.code) == (UserError, "PORT_TAKEN")
    assert error.message == "The local server cannot start: port 7 is taken"


def test_else_the_end_of_its_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("of an earlier start\nTraceback\nImportError: no\n")
    error = embedded._failed("ended at its start with exit code 1", log, 20)
    assert error.message.startswith("The local server ended at its start with exit code 1: ImportError: no\n")
    assert "earlier" not in error.message


def test_a_process_that_has_ended_is_not_alive_before_its_parent_looks() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # until it has closed its end
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still there for us to ask
    assert not embedded.is_alive(process.pid)
    process.wait()
    process.stdout.close()
    assert embedded.is_alive(os.getpid())


def test_a_server_is_started_as_the_last_one_that_left_runs_behind(tmp_path: Path) -> None:
    assert embedded._last_arguments(tmp_path) == ()
    file = tmp_path / "server" / "arguments.json"
    file.parent.mkdir()
    file.write_text('["--simulate", "GPU_1xA10=2"]')
    last = embedded._last_arguments(tmp_path)
    assert embedded._with_last((), last) == (["--simulate", "GPU_1xA10=2"], ["--simulate", "GPU_1xA10=2"])
    file.write_text("{")
    assert embedded._last_arguments(tmp_path) == ()


def test_what_is_given_goes_before_what_the_last_server_had() -> None:
    last = ("--simulate", "GPU_1xA10=2", "--port", "7")
    assert embedded._with_last(("--port", "9"), last) == (
        ["--port", "9", "--simulate", "GPU_1xA10=2"],
        ["--simulate", "GPU_1xA10=2"],
    )
    assert embedded._with_last(last, last) == (list(last), [])
