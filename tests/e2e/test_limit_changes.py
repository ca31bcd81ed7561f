"""A time limit that is changed in mid-run, and a hold that outlives its server: real runners, real servers."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.node.exit_record import AttemptFolder
from airyard.node.zygote import Zygote
from e2e.yard import Yard, wait_for
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture
def side(tmp_path: Path) -> Iterator[MemberSide]:
    """A runner that has been told to sleep for a minute under a limit of 1.5 s."""
    api = RunnerApi()
    api.start()
    zygote = Zygote(tmp_path)
    token = f"aya_{secrets.token_hex(8)}"
    member = api.member(token)
    assert AttemptFolder(tmp_path / "attempts" / "1.0.0").create()
    request = {
        "key": "1.0.0", "node": "n", "devices": [], "token": token, "server_url": api.url, "epoch": 1,
        "cookie": secrets.token_hex(16),
    }  # fmt: skip
    assert "pid" in zygote.start(request, "127.0.0.1")
    member.order("PREPARE", **prepare_order("echo begun; exec sleep 60", attempt_timeout_s=1.5))
    member.report("READY")
    yield member
    zygote.close()
    api.stop()


def test_a_runner_goes_by_its_newest_limit(side: MemberSide) -> None:
    side.order("LIMIT", attempt_timeout_s=40)
    side.order("GO", **GO)
    side.report("STARTED")
    side.order("NO_SUCH_ORDER", anything=1)
    time.sleep(2.5)  # past the first limit
    assert [one["kind"] for one in side.reports if one["kind"] == "EXITED"] == []
    side.order("LIMIT", attempt_timeout_s=None)
    side.order("LIMIT", attempt_timeout_s=2)
    exited = side.report("EXITED", 20)
    assert (exited["cause"], exited["stop_reason"]) == ("USER_LIMIT", "TIME_LIMIT")
    assert "time limit: 2 s were allowed" in exited["message"]


def running(yard: Yard, run_id: int) -> None:
    yard.until(run_id, lambda run: run["status"] == "RUNNING")


def test_a_longer_limit_lets_a_run_finish_and_a_shorter_one_ends_it(yard: Yard) -> None:
    longer = yard.submit("sleep 16", timeout_minutes=1)
    running(yard, longer)
    assert yard.data("update", str(longer), "--timeout", "12s")["updated"][0]["changed"] == ["timeout_s"]
    assert yard.data("update", str(longer), "--timeout", "5m")["updated"][0]["run"]["timeout_s"] == 300
    shorter = yard.submit("sleep 300", timeout_minutes=60)
    running(yard, shorter)
    used = yard.call("update", str(shorter), "--timeout", "1s")
    if used.returncode:  # it has run for longer than that, unless this machine is very quick
        assert "would have passed already" in used.stderr
        yard.ok("update", str(shorter), "--timeout", "12s")
    run = yard.ended(shorter)
    assert (run["outcome"], run["failure"]["cause"]) == ("TIMED_OUT", "USER_LIMIT")
    assert "time limit: 1" in run["failure"]["message"]
    assert yard.ended(longer)["outcome"] == "SUCCEEDED"


def test_a_hold_outlives_the_server(yard: Yard) -> None:
    run_id = int(yard.data("run", yard.file("echo done"), "--hold")["run_id"])
    pid = yard.server_pid()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), what="the server's end")
    run = yard.data("get", str(run_id))
    assert (run["state"], run["held"]) == ("QUEUED", True)
    yard.ok("release", str(run_id))
    run = yard.ended(run_id)
    assert (run["outcome"], run["held"]) == ("SUCCEEDED", False)
