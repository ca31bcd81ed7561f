"""A PostgreSQL that stands still with all its connections open, under one server and under a leader with a standby."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import AiryardError
from e2e.yard import Yard, wait_for
from postgres_server import PostgresServer
from standby_yard import StandbyYard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that may be stopped in its tracks."""
    server = PostgresServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def yard(
    own_postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, environment_cache: Path
) -> Iterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("yard"), environment_cache, simulate="GPU_1xA10=2")
    (made.home / "config.toml").write_text(f'[journal]\nurl = "{own_postgres.make_database()}"\n')
    made.up()
    yield made
    own_postgres.thaw()
    made.close()


def test_one_server_says_so_and_goes_on_without_a_loss(
    yard: Yard, own_postgres: PostgresServer, until_logged: Callable[[Yard, str], None]
) -> None:
    server, go = yard.server_pid(), yard.home / "go"
    run_id = yard.submit(f"while [ ! -e {go} ]; do sleep 0.05; done; echo done")
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    own_postgres.freeze()
    key = "while-it-stands-still"
    refused = yard.call("-o", "json", "run", yard.file("echo second"), "--idempotency-key", key)
    assert refused.returncode != 0
    assert "JOURNAL_BROKEN" in refused.stdout + refused.stderr
    problem = yard.data("status")["journal"]["problem"]
    assert "not answered for" in problem or "timeout" in problem, problem
    until_logged(yard, "journal_away")
    go.touch()
    own_postgres.thaw()
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    again = yard.data("run", yard.file("echo second"), "--idempotency-key", key)
    assert yard.ended(int(again["run_id"]))["outcome"] == "SUCCEEDED"
    assert len(yard.data("list", "--all")["runs"]) == 2
    until_logged(yard, "journal_back")
    assert yard.data("status")["journal"]["problem"] is None
    assert yard.server_pid() == server
    assert yard.call("admin", "verify").returncode == 0


@pytest.fixture
def until_logged() -> Callable[[Yard, str], None]:
    """Wait for an event in a server's log."""

    def wait(yard: Yard, event: str) -> None:
        log = yard.home / "server" / "server.log"
        wait_for(lambda: f'"event": "{event}"' in log.read_text(), what=event)

    return wait


def test_of_two_servers_the_leader_falls_silent_and_one_leads_on(
    own_postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, environment_cache: Path
) -> None:
    yard = StandbyYard(tmp_path_factory.mktemp("frozen"), own_postgres.make_database(), environment_cache)
    try:
        yard.start_both()
        with yard.client() as client:
            go = yard.folder / "go"
            command = f"while [ ! -e {go} ]; do sleep 0.05; done; echo done"
            run_id = client.submit_file(yard.workload(command))["run_id"]
            wait_for(lambda: client.get(run_id)["status"] == "RUNNING", what="the run")
            own_postgres.freeze()
            yard.until_logged("a", "silent")
            with pytest.raises(
                AiryardError, match="does not lead now: its lease on the journal is not renewed"
            ):
                _ask_alone(yard, "a")
            answers: list[dict[str, Any]] = []
            late = threading.Thread(
                target=lambda: answers.append(yard.client().submit_file(yard.workload("echo late")))
            )
            late.start()
            own_postgres.thaw()
            late.join(60)
            go.touch()
            ends = client.wait([run_id, answers[0]["run_id"]], timeout_s=60)
            assert [(run["outcome"], len(run["attempts"])) for run in ends] == [("SUCCEEDED", 1)] * 2
            assert len(client.list(limit=None)) == 2
            assert client.verify()["ok"] is True
    finally:
        own_postgres.thaw()
        yard.close()


def _ask_alone(yard: StandbyYard, name: str) -> None:
    from airyard.sdk import requests
    from airyard.sdk.transport import HttpTransport

    token = (yard.shared / "server" / "token").read_text().strip()
    HttpTransport(yard.url(name), token).send(requests.status())
