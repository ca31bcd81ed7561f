"""kill -9 of a server while messages are to be delivered: none is lost, none comes under two ids."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard
from webhook_receiver import HANG, Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes the first message and never answers, then is out of order twice."""
    with Receiver([HANG, 503, 503]) as one:
        yield one


@pytest.fixture
def yard(tmp_path: Path, environment_cache: Path, receiver: Receiver) -> Iterator[Yard]:
    """A yard that tells of takeovers and lets users' messages go to loopback."""
    one = Yard(tmp_path / "home", environment_cache, simulate="GPU_1xA10=2")
    (one.home / "config.toml").write_text(
        '[notify]\nallow_hosts = ["127.0.0.1"]\nsecret_file = "notify.secret"\n'
        f'[[notify.fleet]]\non = ["server_takeover"]\nto = "{receiver.url}/fleet"\n'
    )
    (one.home / "notify.secret").write_text("a secret of the yard\n")
    (one.home / "notify.secret").chmod(0o600)
    one.up()
    yield one
    one.close()


def ids(receiver: Receiver, kind: str) -> dict[str, list[int]]:
    """Return what was answered under each id of a kind."""
    found: dict[str, list[int]] = {}
    for one in receiver.received:
        if one.document["kind"] == kind:
            found.setdefault(one.id, []).append(one.answered)
    return found


def test_a_server_killed_between_event_and_delivery(yard: Yard, receiver: Receiver) -> None:
    receiver.until(1)  # the first server's own message hangs: it is under way when that server dies
    rule: dict[str, Any] = {"on": ["failed", "done"], "to": receiver.url}
    run_id = yard.submit("exit 3", notify=[rule])
    ended = yard.ended(run_id)
    assert ended["outcome"] == "FAILED"
    os.kill(yard.server_pid(), signal.SIGKILL)
    yard.up()
    receiver.until(3)
    os.kill(yard.server_pid(), signal.SIGKILL)
    yard.up()
    wanted = {"failed": 1, "server_takeover": 3}
    while {kind: len(ids(receiver, kind)) for kind in wanted} != wanted or any(
        200 not in answers for kind in wanted for answers in ids(receiver, kind).values()
    ):
        receiver.until(len(receiver.received) + 1, timeout=90)
    told = [one for one in receiver.received if one.document["kind"] == "failed"]
    assert all(one.genuine(b"a secret of the yard") for one in told)
    assert {one.document["run"]["run_id"] for one in told} == {run_id}
    assert len({one.body for one in told}) == 1
    assert yard.call("admin", "verify").returncode == 0
